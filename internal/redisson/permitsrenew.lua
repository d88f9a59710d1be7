local lease = tonumber(ARGV[1]);
local micros = clock();
local now = math.floor(micros / 1000);
local held = {};
for i = 1, #KEYS / 3 do
    local key, timeouts, channel = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i];
    local owner, count = ARGV[2 * i], tonumber(ARGV[2 * i + 1]);
    local available, ids = find(key, timeouts);
    local back = reclaim(timeouts, now);
    local mine = own(timeouts, owner, count, now);
    if (#mine == count) then
        keep(key, timeouts, mine, micros, lease);
        held[i] = 1;
    else
        remove(timeouts, mine);
        back = back + #mine;
        held[i] = 0;
    end;
    if (back > 0) then
        settle(key, timeouts, channel, available, available and available + ids, true);
    end;
end;
return held;
