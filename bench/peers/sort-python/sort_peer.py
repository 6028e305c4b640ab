"""Sorts a file of records by DuckDB, or runs a command and prints its costs.

    sort_peer.py duckdb INPUT OUTPUT MEMORY FOLDER
    sort_peer.py run COMMAND [ARGUMENT..]
"""

import json
import os
import subprocess
import sys
import time


def sort(source, target, memory, folder):
    """Sorts lines by their first ten characters, as text in one column without delimiters and quotes."""
    import duckdb

    db = duckdb.connect(
        config={
            "memory_limit": f"{memory}B",
            "temp_directory": folder,
            "threads": os.cpu_count(),
            "preserve_insertion_order": False,
        }
    )
    lines = f"read_csv('{source}', header=false, auto_detect=false, columns={{'line': 'VARCHAR'}}, delim='\x01', quote='', escape='')"
    csv = "FORMAT csv, HEADER false, DELIMITER '\x01', QUOTE '', ESCAPE ''"
    db.execute(f"COPY (SELECT line FROM {lines} ORDER BY line[1:10]) TO '{target}' ({csv})")


def run(command):
    """Runs a command to its end."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} failed")
    cpu = usage.ru_utime + usage.ru_stime
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_bytes": usage.ru_maxrss * 1024}))


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "run":
        run(arguments)
    else:
        sort(*arguments)
