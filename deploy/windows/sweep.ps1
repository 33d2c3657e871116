# What lazy-mcp asks of Windows from WSL: who carries a marker, and that they are ended.
#
# It is part of the binary, which runs it as `powershell.exe -EncodedCommand ...` for one request at a time; nobody has to
# install it. It needs Windows PowerShell 5.1, which every Windows has, and no rights beyond those of the user.
# docs/reference/windows.md has the contract with examples.
#
# In:   one JSON object on standard input, then its end.
#         {"action": "query",     "marker": "lazy-mcp\\BACKEND-INSTANCE-GENERATION"}
#         {"action": "terminate", "marker": "...", "processes": [{"pid": 4242, "created": "638..."}]}
# Out:  one JSON object on standard output, in ASCII, and exit code 0.
#         {"ok": true, "processes": [{"pid": 4242, "created": "638...", "name": "chrome.exe"}]}
#         {"ok": true, "results": [{"pid": 4242, "created": "638...", "outcome": "terminated"}]}
#         {"ok": false, "error": "CimException"}
#       `created` is the time of creation in ticks of 100 ns (UTC), as text; "0" where Windows does not tell it.
#       Outcomes: terminated; gone; mismatch (another process by now, which was left alone); error (it could not be).
#
# A command line is looked at here and never leaves this script, nor does the text of an error, which may quote one.
# The marker comes by standard input, so this process does not carry it itself.
#
# Kept simple on purpose: lines that are comments and the blanks before a line are taken out before it is sent, because
# Windows takes 32,767 characters for a whole command line. So no here-strings, and no comment behind code.

$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
# More than that are found by the next query.
$most = 256

# Exactly this marker: what stands before and behind it is no part of a name, so that generation 1 is not 12.
# Paths of Windows know no difference between upper and lower case.
function Test-Marked($process, [string] $marker) {
    $pattern = '(?<![\w-])' + [regex]::Escape($marker) + '(?![\w-])'
    if ($process.ProcessId -eq $PID -or -not $process.CommandLine) { return $false }
    return [regex]::IsMatch($process.CommandLine, $pattern, 'IgnoreCase, CultureInvariant')
}

function Read-Processes([string] $condition) {
    $query = 'SELECT ProcessId, Name, CommandLine, CreationDate FROM Win32_Process' + $condition
    return @(Get-CimInstance -Query $query -OperationTimeoutSec 10)
}

function Get-Created($process) {
    if ($null -eq $process.CreationDate) { return '0' }
    return $process.CreationDate.ToUniversalTime().Ticks.ToString([Globalization.CultureInfo]::InvariantCulture)
}

function Get-Name($process) {
    $name = [string] $process.Name -replace '[^\x20-\x7e]', '?'
    return $name.Substring(0, [Math]::Min(64, $name.Length))
}

function Find-Marked([string] $marker) {
    $marked = @(Read-Processes '' | Where-Object { Test-Marked $_ $marker })
    # Nobody, or somebody is being created just now, whose creator is gone already.
    if ($marked.Count -eq 0) {
        Start-Sleep -Milliseconds 250
        $marked = @(Read-Processes '' | Where-Object { Test-Marked $_ $marker })
    }
    $found = @($marked | Select-Object -First $most | ForEach-Object {
        @{ pid = [long] $_.ProcessId; created = Get-Created $_; name = Get-Name $_ }
    })
    return @{ ok = $true; processes = [object[]] $found }
}

# An open handle keeps the number from being given to another process: pin it first, then look who it is, then end it.
function Stop-Marked([string] $marker, [long] $number, [string] $created) {
    $pinned = $null
    $isPinned = $false
    try {
        try {
            $pinned = [Diagnostics.Process]::GetProcessById([int] $number)
            $isPinned = [bool] $pinned.Handle
        } catch { $isPinned = $false }
        $now = @(Read-Processes " WHERE ProcessId = $number")
        if ($now.Count -eq 0) { return 'gone' }
        if ($created -eq '0' -or (Get-Created $now[0]) -ne $created) { return 'mismatch' }
        if (-not (Test-Marked $now[0] $marker)) { return 'mismatch' }
        if (-not $isPinned) { return 'error' }
        $pinned.Kill()
        return 'terminated'
    } catch {
        return 'error'
    } finally {
        if ($null -ne $pinned) { $pinned.Dispose() }
    }
}

function Stop-All([string] $marker, $wanted) {
    $results = @($wanted | Where-Object { $null -ne $_ } | Select-Object -First $most | ForEach-Object {
        @{ pid = [long] $_.pid; created = [string] $_.created; outcome = Stop-Marked $marker $_.pid $_.created }
    })
    return @{ ok = $true; results = [object[]] $results }
}

try {
    $request = (@($input) -join '') | ConvertFrom-Json
    # An empty marker would be on every command line.
    if ($request.marker -cnotmatch '^lazy-mcp\\[a-zA-Z0-9_-]{3,200}$') { throw [ArgumentException] 'marker' }
    if ($request.action -ceq 'query') {
        $answer = Find-Marked $request.marker
    } elseif ($request.action -ceq 'terminate') {
        $answer = Stop-All $request.marker $request.processes
    } else {
        throw [ArgumentException] 'action'
    }
} catch {
    $answer = @{ ok = $false; error = $_.Exception.GetType().Name }
}
[Console]::Out.WriteLine((ConvertTo-Json -InputObject $answer -Depth 4 -Compress))
[Console]::Out.Flush()
exit 0
