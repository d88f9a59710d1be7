local left, mode, writes = find(KEYS[1], ARGV[2]);
if (mode and not writes) then
    local place = tonumber(ARGV[4]);
    if (place > 0 and redis.call('hexists', KEYS[1], keptOf(ARGV[2], ':write')) == 0) then
        leave(KEYS[2], ARGV[2], ARGV[3], place);
    end;
    return left;
end;
local noted = redis.call('hexists', KEYS[2], ARGV[2]);
local count = 1;
if (mode) then
    count = redis.call('hincrby', KEYS[1], ARGV[2], 1);
else
    redis.call('hset', KEYS[1], 'mode', 'write', ARGV[2], 1);
end;
if (left < tonumber(ARGV[1])) then
    redis.call('pexpire', KEYS[1], ARGV[1]);
end;
if (noted == 1) then
    redis.call('hdel', KEYS[2], ARGV[2]);
end;
return {count};
