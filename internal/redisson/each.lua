-- What an acquisition or a release of several locks does for each of them is what the script of a
-- single one does. An error is the answer about one of them, behind a "-", and keeps no other from
-- its turn.
local function each(step, ...)
    local done, reply = pcall(step, ...);
    if (done) then
        return reply;
    end;
    return '-' .. (type(reply) == 'table' and reply.err or tostring(reply));
end;
