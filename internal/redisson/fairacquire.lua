local grants, lease, owner, lasts, again = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5];
local l = begin(KEYS, 1, owner);
if (l.holds) then
    if (again == '1') then
        l.holds = redis.call('hincrby', l.key, owner, 1);
        redis.call('pexpire', l.key, lease);
    else
        redis.call('pexpire', l.key, math.max(l.left, lease)); -- in any case: it is what replicas acknowledge
    end;
    return {l.holds};
end;
if (l.free and (not l.first or l.first == owner)) then
    take(l, owner);
    redis.call('pexpire', l.key, lease);
    return {1};
end;
if (lasts > 0 and not redis.call('hmget', l.key, keptOf(owner, ':fair'))[1]) then
    local ends, score = place(l, owner);
    keep(l, owner, lasts, ends, score or last(l));
    if (not ends) then
        redis.call('rpush', l.queue, owner);
        l.first = l.first or owner;
    end;
end;
settle(l, grants);
return held(l);
