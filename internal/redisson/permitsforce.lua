local key, timeouts, channel = unpack(KEYS);
local available, ids = find(key, timeouts);
local over = reclaim(timeouts, math.floor(clock() / 1000));
redis.call('del', timeouts);
if (ids > 0) then
    settle(key, timeouts, channel, available, available and available + ids, true);
end;
return ids > over and 1 or 0;
