local lease = tonumber(ARGV[1]);
local held = {};
for i = 1, #KEYS / 2 do
    local key, timeout = KEYS[2 * i - 1], KEYS[2 * i];
    local left, _, reads = find(key, ARGV[i + 1]);
    if (reads and prolong(timeout, lease)) then
        if (left < lease) then
            redis.call('pexpire', key, lease);
        end;
        held[i] = 1;
    else
        redis.call('del', timeout); -- or nothing: but it is no replica's no, as that refuses it
        held[i] = 0;
    end;
end;
return held;
