-- What the scripts of fair locks share. Such a lock is the hash of a plain one. Those who wait for it are a list, and a sorted
-- set says until when each of them counts: these are Redisson's. Another, of our own, says until when each of ours has
-- his place. Ours can be told by their names; the lock is given to them, and Redisson's take it.

local short = 1000; -- what who is given the lock has of it, until he asks for more: in milliseconds
local fresh = 3000; -- what is left of a place if nobody knows
local wait = 300000; -- what Redisson gives one who waits, and takes off the times of all others when he gets in

local function isOurs(owner)
    return string.sub(owner, -5) == ':fair';
end;

local function whole(n)
    return string.format('%.0f', n);
end;

-- strike takes one of ours who has a place out of the list. If Redisson's has done so already, they are one more than it seemed.
local function strike(l, owner)
    l.theirs = l.theirs + 1 - redis.call('lrem', l.queue, 1, owner);
end;

-- leave takes one of ours out of the line, if he is in it.
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

-- purge takes out who counts no more: of ours, whoever has a place that is over, and of Redisson's, whoever is first without a time, or with
-- one that is over. Redisson's own look at who is first only, and wait for ever for one without.
local function purge(l)
    for _, owner in ipairs(redis.call('zrangebyscore', l.places, '-inf', whole(l.now))) do
        leave(l, owner);
    end;
    while (l.first and not isOurs(l.first)) do
        local score = redis.call('zscore', l.timeouts, l.first);
        if (score and tonumber(score) > l.now) then
            break;
        end;
        redis.call('lpop', l.queue);
        redis.call('zrem', l.timeouts, l.first);
        l.first = redis.call('lindex', l.queue, 0);
        l.theirs = l.theirs - 1;
    end;
end;

-- begin looks at a lock, and at one owner, whose holds it returns as l.holds. It ends the script if there is something else. Nothing is
-- written before it is known that no key has a wrong type.
local function begin(keys, at, owner)
    local l = {
        key = keys[at], queue = keys[at + 1], timeouts = keys[at + 2], places = keys[at + 3], channel = keys[at + 4],
    };
    local time = redis.call('time');
    l.now = time[1] * 1000 + math.floor(time[2] / 1000);
    l.left = redis.call('pttl', l.key);
    local mode, holds = unpack(redis.call('hmget', l.key, 'mode', owner or 'mode'));
    if (mode and not tonumber(mode) or l.left == -1 and not isLock(l.key)) then
        redis.call('get', l.key); -- of a hash: the error of a key that has another type
    end;
    l.holds = owner and tonumber(holds or nil);
    l.free = l.left == -2;
    l.first = redis.call('lindex', l.queue, 0);
    local places = redis.call('zcard', l.places);
    l.theirs = redis.call('llen', l.queue) - places; -- how many of Redisson's are in line
    redis.call('zcard', l.timeouts);
    if (not l.first) then
        if (places > 0) then -- the list was lost, or deleted
            redis.call('del', l.places, l.timeouts);
            l.theirs = 0;
        end;
        return l;
    end;
    if (places == 0) then -- they were lost, or nobody of ours is in line
        redis.call('del', l.places); -- nothing; but behind it a server whose memory is full permits the rest
        for _, member in ipairs(redis.call('lrange', l.queue, 0, -1)) do
            if (isOurs(member)) then
                redis.call('zadd', l.places, whole(l.now + fresh), member);
                l.theirs = l.theirs - 1;
            end;
        end;
        redis.call('pexpire', l.places, fresh + wait);
    end;
    purge(l);
    return l;
end;

-- place returns until when one of ours has his place, and his time for Redisson's, or nothing if he isn't in line. Redisson's may have taken
-- him out of the list, or their times were lost: then he isn't, and must not be twice.
local function place(l, owner)
    local ends = redis.call('zscore', l.places, owner);
    if (not ends) then
        return nil;
    end;
    local score = redis.call('zscore', l.timeouts, owner);
    if (not score) then
        strike(l, owner);
        return nil;
    end;
    return tonumber(ends), tonumber(score);
end;

-- last returns the time for Redisson's that who comes last must have, at least.
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

-- keep lets the place of one of ours last for so long, at least, and gives him a time for Redisson's, which take out whoever is first and
-- has none left: no less than he has, or needs to come last. It counts what they take off until it is kept again, if all of theirs that are
-- in line get in, and each leaves one of ours first. Their own times add up, each to that before.
local function keep(l, owner, lease, ends, score)
    ends = math.max(ends or 0, l.now + lease);
    score = math.max(score or 0, ends, l.now + wait * (1 + 2 * math.max(0, l.theirs)));
    redis.call('zadd', l.timeouts, whole(score), owner);
    redis.call('zadd', l.places, whole(ends), owner);
    l.lasts = math.max(l.lasts or 0, ends - l.now + wait);
end;

-- kept sees to it that places outlast those who have them, so that they are known to be over.
local function kept(l)
    if (l.lasts and redis.call('pttl', l.places) < l.lasts) then
        redis.call('pexpire', l.places, whole(l.lasts));
    end;
end;

-- take gives the lock to an owner who is first in line, or to anybody if there is no line. If one of Redisson's comes after some of ours, these
-- were one wait to his time, and so it is taken off.
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
        for _, member in ipairs(redis.call('zrange', l.timeouts, 0, -1)) do
            redis.call('zincrby', l.timeouts, -wait, member);
        end;
    end;
end;

-- settle is the end of each script. If the lock is free and one of ours is first in line, it gives it to him and
-- tells his client. If Redisson's is, he is told to take it, each time: a lock that was given to one of ours may have run out, and he sleeps for
-- as long as the hold before lasted.
local function settle(l, grants)
    kept(l);
    if (not l.free or not l.first) then
        return;
    end;
    if (isOurs(l.first)) then
        take(l, l.first);
        redis.call('pexpireat', l.key, whole(l.now + short));
        l.left = short;
        local owner = string.sub(l.first, 1, -6);
        local client = string.match(owner, '^(.*):') or owner;
        redis.call('publish', grants .. client, table.concat({whole(l.now), short, #l.key, l.key .. l.first}, ' '));
    else
        redis.call('publish', l.channel .. ':' .. l.first, '0');
    end;
end;

-- held says how the lock is held in the end: by whom, for how long, by which time of the server, and whether one of
-- Redisson's may have to pass it on.
local function held(l)
    local holder = not l.free and redis.call('hkeys', l.key)[1];
    local foreign = holder and not isOurs(holder) or l.theirs > 0;
    return {holder, l.left, whole(l.now), foreign and 1 or 0};
end;
