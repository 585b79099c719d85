-- Slurm's job_submit/lua filter: jobs whose script names files of a cell get nodes near them.
--
--     #ZONAL paths=/data/set-1,/data/set-2
--
-- Install: JobSubmitPlugins=lua in slurm.conf; this file beside it; ZONAL_CELL (and ZONAL_KEY_FILE,
-- ZONAL_SERVICE, ZONAL_TOKEN_FILE) in the environment of slurmctld. ZONAL_COMMAND names the program.
-- The hosts of storage nodes must be names of Slurm's nodes.
--
-- Where slurmctld is root, `zonal place` runs as the user who submits, so that nobody learns of
-- files that they may not read. A placement that fails leaves the job as it is, with a line in the
-- log. A job with a node list of its own stays as it is.

local command = os.getenv("ZONAL_COMMAND") or "zonal"

local function quoted(text)
	return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- Paths of all `#ZONAL paths=` lines in the head of a script.
local function paths_of(script)
	local paths = {}
	for line in script:gmatch("[^\n]+") do
		local list = line:match("^#ZONAL%s+paths=(.*)$")
		for path in (list or ""):gmatch("[^,%s]+") do
			paths[#paths + 1] = quoted(path)
		end
	end
	return paths
end

local function number(value, otherwise)
	if value == nil or value == slurm.NO_VAL or value == 0 then
		return otherwise
	end
	return value
end

local function place(paths, nodes, user, group)
	local line = "timeout 10 " .. quoted(command) .. " place --format slurm-hints --nodes " .. nodes
		.. " -- " .. table.concat(paths, " ") .. " 2>&1"
	local as = string.format("setpriv --reuid=%d --regid=%d --init-groups ", user, group)
	local run = io.popen("if [ \"$(id -u)\" = 0 ]; then exec " .. as .. line .. "; else exec " .. line .. "; fi")
	local text = run:read("*a")
	run:close()
	return text:match("#SBATCH %-%-nodelist=(%S+)"), text
end

function slurm_job_submit(job, partitions, user)
	if job.script == nil or job.req_nodes ~= nil then
		return slurm.SUCCESS
	end
	local paths = paths_of(job.script)
	if #paths == 0 then
		return slurm.SUCCESS
	end
	local nodes = number(job.min_nodes, 1)
	local list, text = place(paths, nodes, user, number(job.group_id, 65534))
	if list == nil then
		slurm.log_info("zonal: the job is not placed: %s", text)
		return slurm.SUCCESS
	end
	slurm.log_info("zonal: the job is placed on %s", list)
	job.req_nodes = list
	return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
	return slurm.SUCCESS
end

return slurm.SUCCESS
