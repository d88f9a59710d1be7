local lease = ARGV[1];
local held = {};
for i = 1, #KEYS / 5 do
    local grants, owner = ARGV[2 * i], ARGV[2 * i + 1];
    local l = begin(KEYS, 5 * i - 4, owner);
    if (l.holds) then
        redis.call('pexpire', l.key, lease);
        held[i] = 1;
        kept(l);
    else
        held[i] = redis.call('hdel', l.key, owner); -- 0, and no replica's: that refuses it
        if (not l.more) then
            settle(l, grants);
        end;
    end;
end;
return held;
