local lease = tonumber(ARGV[1]);
local held = {};
for i, key in ipairs(KEYS) do
    local left, _, writes = find(key, ARGV[i + 1]);
    if (writes) then
        redis.call('pexpire', key, math.max(left, lease));
        held[i] = 1;
    else
        held[i] = redis.call('hdel', key, ARGV[i + 1]); -- 0, and no replica's: that refuses it
    end;
end;
return held;
