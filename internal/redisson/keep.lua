local kept = keptOf(ARGV[2], '');
local holds = tonumber(redis.call('hget', KEYS[1], ARGV[2]) or nil);
if (not holds) then
    if (redis.call('hexists', KEYS[1], kept) == 1) then
        return 2;
    end;
    return nil;
end;
if (holds > 1) then
    redis.call('hincrby', KEYS[1], ARGV[2], -1);
    redis.call('pexpire', KEYS[1], ARGV[1]);
    return 0;
end;
redis.call('del', KEYS[1]);
redis.call('hincrby', KEYS[1], kept, 1);
redis.call('pexpire', KEYS[1], ARGV[3]);
redis.pcall('publish', KEYS[2], ARGV[4]);
return 2;
