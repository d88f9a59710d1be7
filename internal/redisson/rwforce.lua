local left, mode = find(KEYS[1]);
if (mode ~= ARGV[2]) then
    return 0;
end;
if (left == -1 or not isLock(KEYS[1])) then
    redis.call('get', KEYS[1]);
end;
eachTimeout(KEYS[1], function(timeout)
    redis.call('del', timeout);
end);
redis.call('del', KEYS[1]);
redis.call('publish', KEYS[2], ARGV[1]);
return 1;
