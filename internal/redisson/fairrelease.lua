local grants, lease, owner = ARGV[1], ARGV[2], ARGV[3];

-- passOn is all that most releases need. It passes the lock on from an owner that has it once to the
-- first in line, if that is one of ours whose place isn't over, and the next is none of Redisson's;
-- or it frees the lock of a line that is empty. It says whether it has. All else waits for the
-- scripts by which places and holds are kept.
local function passOn()
    local l = {key = KEYS[1]};
    local mode, holds = unpack(redis.call('hmget', l.key, 'mode', owner));
    if (mode or holds ~= '1') then
        return false;
    end;
    local first, second = unpack(redis.call('lrange', KEYS[2], 0, 1));
    if (not first and redis.call('zcard', KEYS[4]) == 0) then
        redis.call('del', l.key);
        return true;
    end;
    if (not first or second and not isOurs(second)) then
        return false;
    end;
    l.now = clock();
    local ends = tonumber(redis.call('zscore', KEYS[4], first) or nil);
    if (not ends or ends <= l.now) then -- Redisson's have none
        return false;
    end;
    redis.call('zrem', KEYS[3], first); -- first: that key may have another type
    redis.call('zrem', KEYS[4], first);
    redis.call('lpop', KEYS[2]);
    redis.call('del', l.key);
    redis.call('hset', l.key, first, 1);
    tell(l, grants, first, ends);
    return true;
end;
if (passOn()) then
    return 1;
end;

local l = begin(KEYS, 1, owner);
if (l.more) then
    return 'more';
end;
local released = nil;
if (not l.holds) then
    leave(l, owner); -- sent in any case: a replica refuses it
elseif (l.holds > 1) then
    -- In this order: behind a PEXPIRE a server whose memory is full permits the other.
    redis.call('pexpire', l.key, lease);
    redis.call('hincrby', l.key, owner, -1);
    released = 0;
else
    redis.call('del', l.key);
    l.free = true;
    released = 1;
end;
settle(l, grants);
return released;
