if (redis.call('set', KEYS[1], ARGV[1], 'NX')) then
    redis.call('publish', KEYS[2], ARGV[2]);
    return {1, ARGV[1]};
end;
return {0, redis.call('get', KEYS[1])};
