local left, _, writes = find(KEYS[1], ARGV[3]);
if (not writes) then
    if (redis.call('hdel', KEYS[3], ARGV[3]) == 1) then -- sent in any case: a replica refuses it
        redis.call('publish', KEYS[2], ARGV[1]);
    end;
    return nil;
end;
if (tonumber(writes) > 1) then
    -- In this order: behind a PEXPIRE a server whose memory is full permits the other.
    redis.call('pexpire', KEYS[1], math.max(left, tonumber(ARGV[2])));
    redis.call('hincrby', KEYS[1], ARGV[3], -1);
    return 0;
end;
redis.call('hdel', KEYS[1], ARGV[3]);
local reads = readFor(KEYS[1]);
if (reads > 0) then
    redis.call('hset', KEYS[1], 'mode', 'read');
    redis.call('pexpire', KEYS[1], reads);
else
    redis.call('del', KEYS[1]);
end;
redis.call('publish', KEYS[2], ARGV[1]);
return 1;
