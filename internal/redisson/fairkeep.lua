local grants, lasts = ARGV[1], tonumber(ARGV[2]);
local l = begin(KEYS, 1);
local holder = not l.free and redis.call('hkeys', l.key)[1];
local lost = {};
for i = 3, #ARGV do
    local owner = ARGV[i];
    if (owner == holder) then
        redis.call('pexpire', l.key, math.max(l.left, 1)); -- changes nothing, but is what replicas acknowledge
    else
        local ends, score = place(l, owner);
        keep(l, owner, lasts, ends, score);
        if (not ends) then
            table.insert(lost, owner);
        end;
    end;
end;
for i = #lost, 1, -1 do
    redis.call('lpush', l.queue, lost[i]);
    l.first = lost[i];
end;
settle(l, grants);
return held(l);
