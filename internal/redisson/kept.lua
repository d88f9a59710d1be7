-- What is kept of a lock that its last owner has given back is a hold of a name that no owner has: his own with a word more, before
-- what tells the kinds apart.
local function keptOf(owner, tag)
    return string.sub(owner, 1, -1 - #tag) .. '-kept' .. tag;
end;
