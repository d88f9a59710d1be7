local grants, lasts, settles = ARGV[1], tonumber(ARGV[2]), ARGV[3];
local l = begin(KEYS, 1);
if (l.more) then
    return 'more';
end;

-- listed says whether one of ours that has a place is in the list, which it reads once.
local all;
local function listed(owner)
    if (not all) then
        all = {};
        for _, member in ipairs(redis.call('lrange', l.queue, 0, -1)) do
            all[member] = true;
        end;
    end;
    return all[owner];
end;

local inside = holder(l);
local back = {};
for i = 4, #ARGV do
    local owner = ARGV[i];
    if (owner == inside) then
        redis.call('pexpire', l.key, math.max(l.left, 1)); -- changes nothing, but is what replicas acknowledge
    else
        local ends, score = place(l, owner);
        if (ends and (not score or l.theirs < 0) and not listed(owner)) then
            l.theirs = l.theirs + 1; -- Redisson has taken it out
            ends = nil;
        end;
        keep(l, owner, lasts, ends, score);
        if (not ends) then
            table.insert(back, 1, owner);
        end;
    end;
end;
if (#back > 0) then
    redis.call('lpush', l.queue, unpack(back));
    l.first = back[#back];
end;
if (settles == '1') then
    settle(l, grants);
else
    kept(l);
end;
return held(l);
