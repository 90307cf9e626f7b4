-- The action `lua.tidegate`: asks Tidegate about a request, and answers it if it is refused.
-- Leaves the variables below to the configuration, each only if there is something to say.

-- The frontend `questions` of haproxy.cfg, which is shorter of patience than this.
local URL = "http://127.0.0.1:8079/v1/forward-auth"
local TIMEOUT_MS = 5000
-- What happens while Tidegate does not answer: requests pass, and the service is told; or they are refused with 503.
local OPEN = true

-- HAProxy 2.6 ends itself if its Lua client is given about 100 fields (tune.http.maxhdr); so does not come near.
local MOST_FIELDS = 64

local LEFT = {
    ["txn.tidegate_degraded"] = "x-tidegate-degraded",
    ["txn.tidegate_ratelimit"] = "ratelimit",
    ["txn.tidegate_policy"] = "ratelimit-policy",
    ["txn.tidegate_limit"] = "x-ratelimit-limit",
    ["txn.tidegate_remaining"] = "x-ratelimit-remaining",
    ["txn.tidegate_reset"] = "x-ratelimit-reset",
}

-- About the connection or the body of the client, so not for the question; and what only we may say.
local OURS = {
    ["connection"] = true, ["content-length"] = true, ["expect"] = true, ["host"] = true, ["keep-alive"] = true,
    ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
    ["x-forwarded-for"] = true, ["x-forwarded-host"] = true, ["x-forwarded-method"] = true, ["x-forwarded-uri"] = true,
    ["x-original-method"] = true, ["x-original-uri"] = true, ["x-original-url"] = true,
}

-- The values of a field as a list that starts at 1; HAProxy's start at 0.
local function list(values)
    local listed = {}
    for index = 0, #values do
        if values[index] then listed[#listed + 1] = values[index] end
    end
    return listed
end

-- The fields of the question; none if there are more than may be asked about.
local function question(txn)
    local headers, count = {}, 0
    for name, values in pairs(txn.http:req_get_headers()) do
        if not OURS[name] then
            headers[name] = list(values)
            count = count + #headers[name]
        end
    end
    if count > MOST_FIELDS then return nil end
    local host = txn.f:req_hdr("host")
    headers["x-forwarded-for"] = { txn.f:src() }
    headers["x-forwarded-method"] = { txn.f:method() }
    headers["x-forwarded-uri"] = { txn.f:pathq() }
    if host then headers["x-forwarded-host"] = { host } end
    return headers
end

-- The first value of a field of an answer.
local function said(answer, name)
    local values = answer.headers and answer.headers[name]
    return values and list(values)[1]
end

local function refuse(txn, status, headers, body)
    txn:done(txn:reply { status = status, headers = headers, body = body })
end

core.register_action("tidegate", { "http-req" }, function(txn)
    local headers = question(txn)
    if not headers then return refuse(txn, 431, {}, "") end
    local answer = core.httpclient():get { url = URL, headers = headers, timeout = TIMEOUT_MS }
    local status = answer and answer.status or 0
    if status == 200 then
        for variable, name in pairs(LEFT) do
            local value = said(answer, name)
            if value then txn:set_var(variable, value) end
        end
    elseif status >= 400 and status < 500 or status > 0 and said(answer, "x-tidegate-denied") then
        -- Also a question that Tidegate does not take: no client may get past it by spoiling ours.
        local headers = {}
        for name, values in pairs(answer.headers) do
            if not OURS[name] then headers[name] = list(values) end
        end
        refuse(txn, status, headers, answer.body)
    elseif OPEN then
        txn:set_var("txn.tidegate_degraded", "true")
    else
        refuse(txn, 503, { ["retry-after"] = { "1" } }, "")
    end
end)
