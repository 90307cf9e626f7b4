-- The action `lua.tidegate`: asks Tidegate about a request, and rejects it if it is denied.
-- For an allowed request it sets the variables below, each only if Tidegate sent its header.

-- The frontend `questions` of haproxy.cfg, whose timeout is shorter than this one.
local URL = "http://127.0.0.1:8079/v1/forward-auth"
local TIMEOUT_MS = 5000
-- While Tidegate does not answer: true lets requests pass with X-Tidegate-Degraded, false rejects them with 503.
local OPEN = true

-- HAProxy 2.6 crashes if its Lua client sends about 100 header fields (tune.http.maxhdr), so the bound is well below.
local MAX_FIELDS = 64

local VARIABLES = {
    ["txn.tidegate_degraded"] = "x-tidegate-degraded",
    ["txn.tidegate_ratelimit"] = "ratelimit",
    ["txn.tidegate_policy"] = "ratelimit-policy",
    ["txn.tidegate_limit"] = "x-ratelimit-limit",
    ["txn.tidegate_remaining"] = "x-ratelimit-remaining",
    ["txn.tidegate_reset"] = "x-ratelimit-reset",
    ["txn.tidegate_grace"] = "x-tidegate-grace",
}

-- Not copied from the client: headers about its connection or body, and those that this action sets.
local EXCLUDED = {
    ["connection"] = true, ["content-length"] = true, ["expect"] = true, ["host"] = true, ["keep-alive"] = true,
    ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
    ["x-forwarded-for"] = true, ["x-forwarded-host"] = true, ["x-forwarded-method"] = true, ["x-forwarded-uri"] = true,
    ["x-original-method"] = true, ["x-original-uri"] = true, ["x-original-url"] = true,
}

-- The values of a header as a list that starts at 1; HAProxy's lists start at 0.
local function list(values)
    local listed = {}
    for index = 0, #values do
        if values[index] then listed[#listed + 1] = values[index] end
    end
    return listed
end

-- The headers of the call to Tidegate; nil if there are too many.
local function call_headers(txn)
    local headers, count = {}, 0
    for name, values in pairs(txn.http:req_get_headers()) do
        if not EXCLUDED[name] then
            headers[name] = list(values)
            count = count + #headers[name]
        end
    end
    if count > MAX_FIELDS then return nil end
    local host = txn.f:req_hdr("host")
    headers["x-forwarded-for"] = { txn.f:src() }
    headers["x-forwarded-method"] = { txn.f:method() }
    headers["x-forwarded-uri"] = { txn.f:pathq() }
    if host then headers["x-forwarded-host"] = { host } end
    return headers
end

-- The first value of a header of a response.
local function header_of(response, name)
    local values = response.headers and response.headers[name]
    return values and list(values)[1]
end

local function refuse(txn, status, headers, body)
    txn:done(txn:reply { status = status, headers = headers, body = body })
end

core.register_action("tidegate", { "http-req" }, function(txn)
    local headers = call_headers(txn)
    if not headers then return refuse(txn, 431, {}, "") end
    local response = core.httpclient():get { url = URL, headers = headers, timeout = TIMEOUT_MS }
    local status = response and response.status or 0
    if status == 200 then
        for variable, name in pairs(VARIABLES) do
            local value = header_of(response, name)
            if value then txn:set_var(variable, value) end
        end
    elseif status >= 400 and status < 500 or status > 0 and header_of(response, "x-tidegate-denied") then
        -- This includes calls that Tidegate rejects as invalid, so that no client passes by making the call invalid.
        local headers = {}
        for name, values in pairs(response.headers) do
            if not EXCLUDED[name] then headers[name] = list(values) end
        end
        refuse(txn, status, headers, response.body)
    elseif OPEN then
        txn:set_var("txn.tidegate_degraded", "true")
    else
        refuse(txn, 503, { ["retry-after"] = { "1" }, ["retry-after-ms"] = { "1000" } }, "")
    end
end)
