-- What the scripts of fair locks share. Such a lock is the hash of a plain one. Its waiters are a
-- list, and a sorted set says until when each of them counts: these are Redisson's. Another sorted
-- set, of our own, says until when each of our waiters has its place. Names tell ours from
-- Redisson's: the scripts give the lock to ours, and Redisson's take it.
--
-- The server serves nobody else while a script runs. So where the work grows with the line, a
-- script does a portion of it, and the client sends the script again if there is more.

local short = 1000; -- how long a waiter has the lock that it is given, in milliseconds
local fresh = 3000; -- what is left of a place if nobody knows
local wait = 300000; -- what Redisson gives a waiter, and takes off all times when one gets in

local portion = 250; -- how many of a line a script takes out of its front, or restores
local strikes = 20000; -- how many entries a script passes as it takes others out of the middle
local budget = portion; -- what is left of the portion

local function isOurs(owner)
    return string.sub(owner, -5) == ':fair';
end;

local function whole(n)
    return string.format('%.0f', n);
end;

-- clock returns the server's time, in milliseconds.
local function clock()
    local time = redis.call('time');
    return time[1] * 1000 + math.floor(time[2] / 1000);
end;

-- A waiter that heard of a grant too late is given the lock for longer: for as many more times short as
-- its place has sixteenths of a millisecond.
local function longer(ends)
    return 16 * (ends - math.floor(ends));
end;

-- strike takes one of ours that has a place out of the list. If Redisson has done so already, one
-- more of those in the list is Redisson's than it seemed.
local function strike(l, owner)
    l.theirs = l.theirs + 1 - redis.call('lrem', l.queue, 1, owner);
end;

-- leave takes one of ours out of the line, if it is in it.
local function leave(l, owner)
    if (redis.call('zrem', l.places, owner) == 0) then
        return;
    end;
    redis.call('zrem', l.timeouts, owner);
    strike(l, owner);
    if (owner == l.first) then
        l.first = redis.call('lindex', l.queue, 0);
    end;
end;

-- outlast lets a key exist for so long, at least.
local function outlast(key, lasts)
    if (redis.call('pttl', key) < lasts) then
        redis.call('pexpire', key, whole(lasts));
    end;
end;

-- turnOf returns the least time for Redisson that one of ours needs. It counts what Redisson takes off
-- until it is kept again, if all of Redisson's that are in line get in, and each leaves one of ours
-- first. Their own times add up, each to that before.
local function turnOf(l)
    return wait * (1 + 2 * math.max(0, l.theirs));
end;

-- restore makes the places of ours anew where they were lost, as after an eviction, and the times of
-- those that have a place. A waiter without a place whose time lies ahead may be alive. Others are
-- dead, since places outlast the times. The score of a member that is nobody's name says how far
-- earlier scripts have come.
local function restore(l)
    local from = tonumber(redis.call('zscore', l.places, '') or 0);
    local words, times, looked = {}, {}, 0;
    -- This takes out nothing at first. But behind it a server whose memory is full permits the rest.
    l.theirs = l.theirs + redis.call('zrem', l.places, '');
    for _, member in ipairs(redis.call('lrange', l.queue, from, from + 10 * portion - 1)) do
        if (budget <= 0) then
            break;
        end;
        looked = looked + 1;
        if (isOurs(member)) then
            local score = tonumber(redis.call('zscore', l.timeouts, member) or nil);
            local ends = tonumber(redis.call('zscore', l.places, member) or nil);
            local left = math.max((score or 0) - l.now, 0);
            if (not ends) then
                table.insert(words, whole(left > 0 and l.now + fresh or l.now));
                table.insert(words, member);
            elseif (not score and ends > l.now) then
                left = math.max(ends - l.now, turnOf(l));
                table.insert(times, whole(l.now + left));
                table.insert(times, member);
            end;
            l.lasts = math.max(l.lasts or fresh, left);
            budget = budget - 1;
        end;
    end;
    l.more = from + looked < l.length;
    l.restored = not l.more;
    if (l.more) then
        table.insert(words, from + looked);
        table.insert(words, '');
    end;
    if (#times > 0) then
        redis.call('zadd', l.timeouts, unpack(times));
    end;
    if (#words > 0) then
        redis.call('zadd', l.places, unpack(words));
        outlast(l.places, l.lasts or fresh);
    end;
    l.theirs = l.length - redis.call('zcard', l.places);
end;

-- anew forgets the places and times of a list that was lost. Redisson's have begun another.
local function anew(l)
    local times = {};
    for _, member in ipairs(redis.call('lrange', l.queue, 0, portion - 1)) do
        local score = redis.call('zscore', l.timeouts, member);
        if (score) then
            table.insert(times, score);
            table.insert(times, member);
        end;
    end;
    redis.call('del', l.places, l.timeouts);
    if (#times > 0) then
        redis.call('zadd', l.timeouts, unpack(times));
    end;
    l.theirs = l.length;
end;

-- counts says whether a waiter still counts: one of ours until its place is over, and one of
-- Redisson's until its time is. Redisson itself waits for ever for one without a time.
local function counts(l, owner)
    if (isOurs(owner)) then
        local ends = redis.call('zscore', l.places, owner);
        return not ends or tonumber(ends) > l.now;
    end;
    local score = redis.call('zscore', l.timeouts, owner);
    return score and tonumber(score) > l.now;
end;

-- purgeFront takes the first out of the line for as long as it doesn't count.
local function purgeFront(l)
    local gone = {};
    while (l.first and not counts(l, l.first)) do
        if (budget <= 0) then
            l.more = true;
            break;
        end;
        budget = budget - 1;
        table.insert(gone, l.first);
        if (not isOurs(l.first)) then
            l.theirs = l.theirs - 1;
        end;
        redis.call('lpop', l.queue);
        l.first = redis.call('lindex', l.queue, 0);
    end;
    if (#gone > 0) then
        redis.call('zrem', l.timeouts, unpack(gone));
        redis.call('zrem', l.places, unpack(gone));
    end;
end;

-- overdue returns some of ours whose places are over: as many as may be struck out of the list.
local function overdue(l)
    local most = math.max(1, math.min(portion, math.floor(strikes / l.length)));
    return redis.call('zrangebyscore', l.places, '-inf', whole(l.now), 'limit', 0, most);
end;

-- purge takes out of the line what doesn't count: at its front, and of ours also behind. To strike
-- one out of the middle of a long list takes long, so that many of them stay there until they are
-- first. They get nothing, unless their clients keep the places again.
local function purge(l, places)
    local over = places > 0 and overdue(l);
    if (not over or over[1] == '') then -- they are lost, or none of ours is in line
        restore(l);
        if (l.more) then
            return;
        end;
        over = overdue(l);
    end;
    if (#over > 0 or not isOurs(l.first)) then
        purgeFront(l);
    end;
    for _, owner in ipairs(over) do
        if (strikes > 0) then
            strikes = strikes - l.length;
            leave(l, owner);
        end;
    end;
end;

-- begin looks at a lock, and at one owner, whose holds it returns as l.holds. It ends the script if
-- there is something else. Nothing is written before it is known that no key has a wrong type.
-- Where it sets l.more the script must be sent again before anybody is let in, or put in line.
local function begin(keys, at, owner)
    local l = {
        key = keys[at], queue = keys[at + 1], timeouts = keys[at + 2], places = keys[at + 3],
        channel = keys[at + 4],
    };
    l.now = clock();
    l.left = redis.call('pttl', l.key);
    local mode, holds = unpack(redis.call('hmget', l.key, 'mode', owner or 'mode'));
    if (mode and not tonumber(mode) or l.left == -1 and not isLock(l.key)) then
        redis.call('get', l.key); -- of a hash: the error of a key that has another type
    end;
    l.holds = owner and tonumber(holds or nil);
    l.free = l.left == -2;
    l.first = redis.call('lindex', l.queue, 0);
    local places = redis.call('zcard', l.places);
    l.length = redis.call('llen', l.queue);
    l.theirs = l.length - places; -- how many of Redisson's are in line
    local times = redis.call('zcard', l.timeouts);
    if (l.first) then
        if (times > l.length) then
            anew(l);
            places = 0;
        end;
        purge(l, places);
    elseif (places > 0) then -- the list was lost, or deleted
        redis.call('del', l.places, l.timeouts);
        l.theirs = 0;
    end;
    return l;
end;

-- place returns until when one of ours has its place, and its time for Redisson. One without a place
-- isn't in line. One without a time may be: Redisson has taken it out, or the times were lost.
local function place(l, owner)
    local ends = redis.call('zscore', l.places, owner);
    local score = ends and redis.call('zscore', l.timeouts, owner);
    return tonumber(ends or nil), tonumber(score or nil);
end;

-- last returns the least time for Redisson of a waiter that comes last.
local function last(l)
    if (l.theirs <= 0) then
        return 0;
    end;
    local tail = redis.call('lindex', l.queue, -1);
    local score = tonumber(redis.call('zscore', l.timeouts, tail) or nil) or 0;
    if (isOurs(tail)) then
        return score;
    end;
    return score + wait;
end;

-- keep lets the place of one of ours last for so long, at least, and gives it a time for Redisson,
-- which takes the first out of the line when it has none left: no less than it has, or needs to come
-- last.
local function keep(l, owner, lease, ends, score)
    local more = math.max(l.longer or 0, longer(ends or 0));
    ends = math.max(math.floor(ends or 0), l.now + lease) + more / 16;
    score = math.max(score or 0, ends, l.now + turnOf(l));
    l.scores, l.ends = l.scores or {}, l.ends or {};
    table.insert(l.scores, whole(score));
    table.insert(l.scores, owner);
    table.insert(l.ends, string.format('%.4f', ends));
    table.insert(l.ends, owner);
    l.lasts = math.max(l.lasts or 0, score - l.now);
end;

-- kept writes down what was kept. Places outlast the times for Redisson, so that their loss says that
-- they are over. The list and the times of a line that has only ours end with it, if all in it have
-- died. Those of a line with one of Redisson's don't end.
local function kept(l)
    if (l.scores) then
        redis.call('zadd', l.timeouts, unpack(l.scores));
        redis.call('zadd', l.places, unpack(l.ends));
        l.scores, l.ends = nil, nil;
    end;
    if (l.theirs > 0) then
        if (redis.call('pttl', l.queue) >= 0) then
            redis.call('persist', l.queue);
            redis.call('persist', l.timeouts);
        end;
    elseif (l.lasts) then
        outlast(l.timeouts, l.lasts); -- first: Redisson looks there whether it is in line
        outlast(l.queue, l.lasts);
    end;
    if (l.lasts) then
        outlast(l.places, l.lasts);
    end;
end;

-- take gives the lock to an owner that is first in line, or to anybody if there is no line. If one of
-- Redisson's comes after some of ours, these were one wait to its time. So that is taken off: of all
-- that are near, since a script has no time for more.
local function take(l, owner)
    redis.call('hset', l.key, owner, 1); -- first: a server whose memory is full refuses it
    if (l.first) then
        redis.call('lpop', l.queue);
        redis.call('zrem', l.timeouts, owner);
        redis.call('zrem', l.places, owner);
    end;
    l.free = false;
    local head = l.theirs > 0 and redis.call('lindex', l.queue, 0);
    if (head and not isOurs(head)) then
        for _, member in ipairs(redis.call('lrange', l.queue, 0, 2 * portion - 1)) do
            redis.call('zadd', l.timeouts, 'xx', 'incr', -wait, member);
        end;
    end;
end;

-- tell has one of ours that the lock was given to, with a place until then, have it for a short time,
-- and says so to its client.
local function tell(l, grants, owner, ends)
    l.left = short * (1 + longer(ends));
    redis.call('pexpireat', l.key, whole(l.now + l.left));
    local party = string.sub(owner, 1, -6);
    local client = string.match(party, '^(.*):') or party;
    local message = {whole(l.now), whole(l.left), #l.key, l.key .. owner};
    redis.call('publish', grants .. client, table.concat(message, ' '));
end;

-- settle is the end of each script. If the lock is free and one of ours is first in line, it gives it
-- the lock and tells its client. If one of Redisson's is, it tells it each time: a lock that was given
-- to one of ours may have run out, and Redisson's sleeps for as long as the hold before lasted.
local function settle(l, grants)
    kept(l);
    if (not l.free or not l.first) then
        return;
    end;
    if (isOurs(l.first)) then
        local ends = tonumber(redis.call('zscore', l.places, l.first) or 0);
        take(l, l.first);
        tell(l, grants, l.first, ends);
    else
        local turn = l.channel .. ':' .. l.first;
        redis.call('publish', turn, '0');
        local plain = 'pub' .. 'lish';
        if ('publish' ~= plain) then -- some of Redisson's don't listen to sharded channels
            redis.pcall(plain, turn, '0');
        end;
    end;
end;

-- holder returns who holds the lock, or nothing if nobody does, or somebody's data is there.
local function holder(l)
    return not l.free and redis.call('hlen', l.key) == 1 and redis.call('hkeys', l.key)[1];
end;

-- held says how the lock is held in the end: by whom, for how long, by which time of the server, and
-- whether one of Redisson's may have to pass it on.
local function held(l)
    local owner = holder(l);
    local foreign = not l.free and not (owner and isOurs(owner)) or l.theirs > 0;
    return {owner, l.left, whole(l.now), foreign and 1 or 0};
end;
