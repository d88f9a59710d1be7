local left = redis.call('decr', KEYS[1]);
if (left > 0) then
    return {0, left};
end;
redis.call('del', KEYS[1]);
if (left == 0) then
    redis.call('publish', KEYS[2], ARGV[1]);
end;
return {0, 0};
