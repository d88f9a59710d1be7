-- What the scripts of semaphores share. A semaphore is how many permits are available, and a sorted set of the ids of those that
-- are out, by when they end, in milliseconds since 1970 by the server's clock. An id is twelve bytes that stand for the owner and
-- four that number his permits, downwards: Redisson takes out what is over in the order of the bytes, so the last number to
-- go is the first. What is available and what is out are as many as there are.

local function clock()
    local time = redis.call('time');
    return time[1] * 1000000 + time[2];
end;

-- find returns how many permits are available, or false if nobody has said that, and how many ids there are. It
-- ends the script if there is something else.
local function find(key, timeouts)
    local available = redis.call('get', key);
    if (available and (#available > 15 or not string.match(available, '^-?%d+$'))) then
        redis.call('hlen', key); -- of a string: the error of a key that has another type
    end;
    return available and tonumber(available), redis.call('zcard', timeouts);
end;

local function id(owner, i)
    i = 4294967295 - i;
    return owner .. string.char(math.floor(i / 16777216) % 256, math.floor(i / 65536) % 256, math.floor(i / 256) % 256, i % 256);
end;

-- keptId is what such a permit is called when its owner has given it back and nobody gets it yet.
local function keptId(owner, i)
    return id(owner, 2147483648 + i);
end;

-- isKept says whether that is so of an owner's permits.
local function isKept(timeouts, owner, now)
    local ends = redis.call('zscore', timeouts, keptId(owner, 0));
    return ends and tonumber(ends) > now;
end;

-- own returns which of an owner's ids are out and not over: of the first so many, and of those that come next.
local function own(timeouts, owner, count, now)
    local ids, i = {}, 0;
    repeat
        local this = id(owner, i);
        local ends = redis.call('zscore', timeouts, this);
        if (ends and tonumber(ends) > now) then
            table.insert(ids, this);
        end;
        i = i + 1;
    until (i > count and not ends);
    return ids;
end;

-- keep lets ids last for a lease from now. All of them last no longer than the semaphore, if that has an expiry.
local function keep(key, timeouts, ids, micros, lease)
    local ends = string.format('%.0f', math.ceil(micros / 1000) + lease);
    for _, this in ipairs(ids) do
        redis.call('zadd', timeouts, ends, this);
    end;
    local left = redis.call('pttl', key);
    if (left > 0) then
        redis.call('pexpire', timeouts, left);
    elseif (left == -1) then
        redis.call('persist', timeouts); -- it may have had an expiry that was taken away
    end;
end;

-- reclaim takes out what is over, and returns how many these were. It comes first where a script may do nothing: a replica
-- refuses it, and behind it a server whose memory is full permits the rest.
local function reclaim(timeouts, now)
    return redis.call('zremrangebyscore', timeouts, '-inf', string.format('%.0f', now));
end;

local function remove(timeouts, ids)
    for _, this in ipairs(ids) do
        redis.call('zrem', timeouts, this);
    end;
end;

-- settle puts down how many are available of so many, where it was another number, or false for none. It keeps the
-- expiry. If some may get in who couldn't before, it wakes them.
local function settle(key, timeouts, channel, before, total, wake)
    local available = 0;
    if (total) then
        available = total - redis.call('zcard', timeouts);
        if (not before) then
            redis.call('set', key, available);
        elseif (available ~= before) then
            redis.call('incrby', key, available - before);
        end;
    end;
    if (wake) then
        redis.call('publish', channel, math.max(available, 0));
    end;
end;

-- lasts returns for how many milliseconds the permit of a rank counts yet: never more than its lease, and at least 1; or -1 if
-- it does for ever.
local function lasts(timeouts, rank, micros)
    local ends = tonumber(redis.call('zrange', timeouts, rank, rank, 'withscores')[2]);
    if (ends >= 922337203685477) then
        return -1;
    end;
    return math.max(math.ceil(ends) - math.ceil(micros / 1000), 1);
end;
