local grants, lasts, settles = ARGV[1], tonumber(ARGV[2]), ARGV[3];
local l = begin(KEYS, 1);
if (l.more) then
    return 'more';
end;

-- If times in the list were lost, as after an eviction, one of ours without a time may be in the
-- list. Otherwise Redisson has taken it out. out says that this is so, as far as is known. Where
-- scripts before this one have restored the times, some may have been missed, since the line moved.
local sure;
local function out(owner)
    if (l.restored and strikes > 0) then
        strikes = strikes - l.length;
        strike(l, owner); -- it must not be in line twice
        return true;
    end;
    sure = sure or l.restored or redis.call('zcard', l.timeouts) >= redis.call('llen', l.queue);
    if (sure) then
        l.theirs = l.theirs + 1;
    end;
    return sure;
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
            if (not out(owner)) then
                redis.call('zadd', l.places, 0, ''); -- the next script restores the times
                return 'more';
            end;
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
