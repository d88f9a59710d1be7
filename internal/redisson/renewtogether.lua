local held = {};
for i, name in ipairs(KEYS) do
    held[i] = redis.call('hexists', name, ARGV[i + 1]);
    if (held[i] == 1) then
        redis.call('pexpire', name, ARGV[1]);
    end;
end;
return held;
