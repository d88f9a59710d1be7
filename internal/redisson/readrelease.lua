local _, mode = find(KEYS[1]);
if (redis.call('hdel', KEYS[1], ARGV[2]) == 0) then
    return nil; -- which is no replica's answer: that refuses a HDEL
end;
local released = nil;
if (redis.call('del', KEYS[3]) == 1) then
    released = 1; -- else it had ended
end;
if (mode == 'write') then
    return released; -- the owner's
end;
local left = readFor(KEYS[1]);
if (left > 0) then
    redis.call('pexpire', KEYS[1], left);
else
    redis.call('del', KEYS[1]);
    redis.call('publish', KEYS[2], ARGV[1]);
end;
return released;
