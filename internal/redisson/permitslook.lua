local key, timeouts = unpack(KEYS);
local available, ids = find(key, timeouts);
local micros = clock();
local now = math.floor(micros / 1000);
local out = redis.call('zcount', timeouts, '(' .. string.format('%.0f', now), '+inf');
local mine, left = 0, 0;
if (out > 0) then
    left = lasts(timeouts, -1, micros);
    if (ARGV[1] ~= '') then
        mine = #own(timeouts, ARGV[1], tonumber(ARGV[2]), now);
    end;
end;
return {out, mine, left, available and available + ids};
