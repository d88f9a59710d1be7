local left = redis.call('pttl', KEYS[1]);
local mode, holds = unpack(redis.call('hmget', KEYS[1], 'mode', ARGV[2]));
local token = redis.call('get', KEYS[2]);
if (mode and not tonumber(mode) or left == -1 and not isLock(KEYS[1])) then
    redis.call('get', KEYS[1]); -- of a hash: the error of a key that has another type
end;
if (left ~= -2 and not holds) then
    return left;
end;
if (token and (not string.match(token, '^%d+$') or #token > 18)) then
    redis.call('hlen', KEYS[2]); -- of a string, likewise
end;
if (not holds or not token) then
    local time = redis.call('time');
    local micros = time[1] * 1000000 + time[2];
    if (token and tonumber(token) >= micros) then
        redis.call('incr', KEYS[2]); -- not here, as Lua's numbers end at 2^53
        redis.call('persist', KEYS[2]);
        token = redis.call('get', KEYS[2]);
    else
        token = string.format('%.0f', micros);
        redis.call('set', KEYS[2], token);
    end;
end;
local count = redis.call('hincrby', KEYS[1], ARGV[2], 1);
redis.call('pexpire', KEYS[1], ARGV[1]);
return {count, token};
