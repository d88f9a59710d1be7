local grants, lease, owner, lasts = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]);
local again, back = ARGV[5], ARGV[6] == '1';
local l = begin(KEYS, 1, owner);
if (l.holds) then
    if (again == '1') then
        l.holds = redis.call('hincrby', l.key, owner, 1);
        redis.call('pexpire', l.key, lease);
    else
        redis.call('pexpire', l.key, math.max(l.left, lease)); -- in any case: it is what replicas acknowledge
    end;
    kept(l);
    return {l.holds};
end;
if (l.more) then
    return 'more';
end;
if (back and l.free and l.first and not redis.call('zscore', l.places, owner)) then
    redis.call('lpush', l.queue, owner);
    l.first = owner;
end;
if (l.free and (not l.first or l.first == owner)) then
    take(l, owner);
    redis.call('pexpire', l.key, lease);
    kept(l);
    return {1};
end;
if (lasts > 0 and not redis.call('hmget', l.key, keptOf(owner, ':fair'))[1]) then
    local ends, score = place(l, owner);
    l.longer = back and math.min(15, math.max(0, math.ceil(lasts / short) - 3));
    if (ends and not score) then
        strike(l, owner); -- it must not be in line twice
        ends = nil;
    end;
    keep(l, owner, lasts, ends, score or last(l));
    if (not ends) then
        redis.call(back and 'lpush' or 'rpush', l.queue, owner);
        l.first = not back and l.first or owner;
    end;
end;
settle(l, grants);
return held(l);
