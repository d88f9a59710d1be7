-- What the scripts of read-write locks share. Such a lock is a hash with a mode, a field for each owner who
-- reads and, OWNER:write, for the one who writes, with their holds. A reader has a timeout key for each
-- hold besides, which ends with that hold's lease; the hash lasts as long as the longest.

-- find returns for how long the lock lasts, -2 if there is none, its mode, and other fields of the hash. It
-- ends the script if there is something else.
local function find(key, ...)
    local left = redis.call('pttl', key);
    local fields = redis.call('hmget', key, 'mode', ...);
    local mode = fields[1];
    if (left ~= -2 and mode ~= 'read' and mode ~= 'write' or left == -1 and not isLock(key)) then
        redis.call('get', key); -- of a hash: the error of a key that has another type
    end;
    return left, unpack(fields);
end;

-- eachTimeout calls a function with the timeout keys of all who read. Nobody has as many as ten thousand, but
-- somebody's data may say so, and a server does nothing else meanwhile.
local function eachTimeout(key, visit)
    local tagged = key;
    if (not string.find(key, '{', 1, true)) then
        tagged = '{' .. key .. '}';
    end;
    local fields = redis.call('hgetall', key);
    for f = 1, #fields, 2 do
        for i = 1, math.min(tonumber(fields[f + 1]) or 0, 10000) do
            visit(tagged .. ':' .. fields[f] .. ':rwlock_timeout:' .. i);
        end;
    end;
end;

-- readFor returns for how long anybody goes on reading. It is not positive if nobody does.
local function readFor(key)
    local longest = -2;
    eachTimeout(key, function(timeout)
        longest = math.max(longest, redis.call('pttl', timeout));
    end);
    return longest;
end;

-- prolong lets a reader's timeout key last for a lease at least. If it has ended already it returns false: the
-- field of that reader stays, but reads no more.
local function prolong(timeout, lease)
    local left = redis.call('pttl', timeout);
    if (left ~= -2 and left < lease) then
        redis.call('pexpire', timeout, lease);
    end;
    return left ~= -2;
end;
