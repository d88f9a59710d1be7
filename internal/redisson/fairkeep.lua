local grants, lasts, settles = ARGV[1], tonumber(ARGV[2]), ARGV[3];
local l = begin(KEYS, 1);
if (l.more) then
    return 'more';
end;

-- If times in the list were lost, as after an eviction, one of ours without a time may be in the
-- list. Otherwise Redisson has taken it out.
local function lost()
    return not l.restored and redis.call('zcard', l.timeouts) < redis.call('llen', l.queue);
end;

local inside = holder(l);
local back = {};
for i = 4, #ARGV do
    local owner = ARGV[i];
    if (owner == inside) then
        redis.call('pexpire', l.key, math.max(l.left, 1)); -- changes nothing, but is what replicas acknowledge
    else
        local ends, score = place(l, owner);
        if (ends and not score) then
            if (lost()) then
                redis.call('zadd', l.places, 0, ''); -- the next script restores the times
                return 'more';
            end;
            l.restored = true; -- or nothing was lost
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
