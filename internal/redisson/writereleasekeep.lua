local left, _, writes = find(KEYS[1], ARGV[3]);
local kept = keptOf(ARGV[3], ':write');
if (not writes) then
    if (redis.call('hdel', KEYS[3], ARGV[3]) == 1) then -- sent in any case: a replica refuses it
        redis.call('publish', KEYS[2], ARGV[1]);
    end;
    if (redis.call('hexists', KEYS[1], kept) == 1) then
        return 2;
    end;
    return nil;
end;
if (tonumber(writes) > 1) then
    redis.call('pexpire', KEYS[1], math.max(left, tonumber(ARGV[2])));
    redis.call('hincrby', KEYS[1], ARGV[3], -1);
    return 0;
end;
redis.call('hdel', KEYS[1], ARGV[3]); -- the mode is left: behind it a server whose memory is full permits the rest
redis.call('hset', KEYS[1], kept, 1);
redis.call('pexpire', KEYS[1], math.max(tonumber(ARGV[4]), readFor(KEYS[1])));
return 2;
