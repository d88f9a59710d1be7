-- Goes in front of what the holder of a fenced lock does with keys. Each key has a fence: a key
-- beside it with the largest token that has claimed it. A larger one than the holder's refuses the
-- call. Else the holder's is put down before anything else is written, so that all who came before
-- are refused.
local token = table.remove(ARGV);
local function check(fence, last)
    if (last and not string.match(last, '^[1-9]%d*$')) then
        return {err = 'NOTOKEN ' .. fence};
    end;
    if (last and (#last > #token or #last == #token and last > token)) then
        return {err = 'STALETOKEN ' .. last};
    end;
    return false;
end;
local refused;
