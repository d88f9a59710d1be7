local lease = tonumber(ARGV[1]);
local held = {};
for i = 1, #KEYS / 2 do
    local key, owner = KEYS[2 * i - 1], ARGV[i + 1];
    local left, _, reads = find(key, owner);
    if (reads) then
        prolong(KEYS[2 * i], lease);
        if (left < lease) then
            redis.call('pexpire', key, lease);
        end;
        held[i] = 1;
    else
        held[i] = redis.call('hdel', key, owner); -- 0, and no replica's: that refuses it
    end;
end;
return held;
