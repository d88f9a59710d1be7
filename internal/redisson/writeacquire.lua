local left, mode, writes = find(KEYS[1], ARGV[2]);
if (mode and not writes) then
    local place = tonumber(ARGV[4]);
    if (place > 0) then
        leave(KEYS[2], ARGV[2], ARGV[3], place);
    end;
    return left;
end;
local noted = redis.call('hexists', KEYS[2], ARGV[2]);
if (not mode) then
    redis.call('hset', KEYS[1], 'mode', 'write');
end;
local count = redis.call('hincrby', KEYS[1], ARGV[2], 1);
if (left < tonumber(ARGV[1])) then
    redis.call('pexpire', KEYS[1], ARGV[1]);
end;
if (noted == 1) then
    redis.call('hdel', KEYS[2], ARGV[2]);
end;
return {count};
