// Judges a history of reads and writes of objects by porcupine, one key at a time, and prints a verdict as JSON.
//
//	linearizability [-strict] [-window 1s] [-limit 20s] HISTORY.jsonl
//
// A key's history is linearizable, or linearizable except for reads concurrent with a write ("weaker"), or wrong. The weaker promise is that a read
// returns the newest write acknowledged before it began, or a later one: such a read may return a new version and the next read the old
// one while the write still runs, or within the window of one whose response was lost. With -strict the weaker promise is not enough. The exit code is 1 if a key is wrong or undecided.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// A write of unknown outcome takes effect within this time, or never: longer than any request and any window of a soak.
const latest = int64(40 * time.Second)

// The outcomes of an operation.
const (
	done = "ok"
	// A conditional write was refused, as the key has an object.
	exists = "exists"
	// The response is lost: the write happened, will happen, or never does.
	unknown = "unknown"
)

type operation struct {
	Key     string `json:"key"`
	Kind    string `json:"kind"`
	Value   string `json:"value"`
	Outcome string `json:"outcome"`
	Call    int64  `json:"call"`
	Return  int64  `json:"return"`
}

func (op operation) isRead() bool { return op.Kind == "get" }

// A key is a register that holds the value of its object, or "" without one.
var register = porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{""} },
	Step: func(state, input, output interface{}) []interface{} {
		return after(state.(string), input.(operation))
	},
	Equal: func(one, other interface{}) bool { return one == other },
}

// Returns the states that an operation may leave behind, none if its outcome is impossible in this state.
func after(state string, op operation) []interface{} {
	switch op.Kind {
	case "get":
		if op.Value == state {
			return []interface{}{state}
		}
		return nil
	case "create":
		switch {
		case op.Outcome == done && state == "":
			return []interface{}{op.Value}
		case op.Outcome == exists && state != "":
			return []interface{}{state}
		case op.Outcome == unknown && state == "":
			return []interface{}{op.Value, state}
		case op.Outcome == unknown:
			return []interface{}{state}
		}
		return nil
	}
	if op.Outcome == unknown {
		return []interface{}{op.Value, state}
	}
	return []interface{}{op.Value}
}

// Bounds writes of unknown outcome. One whose value was read had happened when the first such read ended. One whose value nobody saw is
// left out where nothing else depends on it.
func bounded(history []operation, window time.Duration) []operation {
	firstSeen := map[string]int64{}
	hasConditions := false
	for _, op := range history {
		if op.isRead() && op.Value != "" {
			if seen, found := firstSeen[op.Value]; !found || op.Return < seen {
				firstSeen[op.Value] = op.Return
			}
		}
		hasConditions = hasConditions || op.Kind == "create"
	}
	var kept []operation
	for _, op := range history {
		if op.Outcome == unknown && !op.isRead() {
			seen, isSeen := firstSeen[op.Value]
			switch {
			case op.Value != "" && isSeen:
				// Whether the write had its effect is known by that read.
				op.Outcome, op.Return = done, max(seen, op.Call)+int64(window)
			case op.Value != "" && !hasConditions:
				continue
			default:
				op.Return = op.Call + latest
			}
		}
		kept = append(kept, op)
	}
	return kept
}

// Returns the history in which a read lasts as long as the writes that it overlaps: their versions may be seen in any order until then.
func weakened(history []operation) []operation {
	var writes []operation
	for _, op := range history {
		if !op.isRead() {
			writes = append(writes, op)
		}
	}
	weaker := make([]operation, len(history))
	for at, op := range history {
		weaker[at] = op
		if !op.isRead() {
			continue
		}
		for _, write := range writes {
			if write.Call <= op.Return && op.Call <= write.Return {
				weaker[at].Call = min(weaker[at].Call, write.Call)
				weaker[at].Return = max(weaker[at].Return, write.Return)
			}
		}
	}
	return weaker
}

func check(history []operation, limit time.Duration) porcupine.CheckResult {
	operations := make([]porcupine.Operation, len(history))
	for at, op := range history {
		operations[at] = porcupine.Operation{Input: op, Call: op.Call, Return: op.Return}
	}
	return porcupine.CheckOperationsTimeout(register.ToModel(), operations, limit)
}

type verdict struct {
	Operations   int      `json:"operations"`
	Keys         int      `json:"keys"`
	Linearizable int      `json:"linearizable"`
	Weaker       int      `json:"weaker"`
	Undecided    int      `json:"undecided"`
	Wrong        []string `json:"wrong"`
}

func judge(histories map[string][]operation, strict bool, window, limit time.Duration) verdict {
	result := verdict{Keys: len(histories), Wrong: []string{}}
	for key, all := range histories {
		result.Operations += len(all)
		found := check(bounded(all, 0), limit)
		if found == porcupine.Ok {
			result.Linearizable++
			continue
		}
		if !strict {
			if found = check(weakened(bounded(all, window)), limit); found == porcupine.Ok {
				result.Weaker++
				continue
			}
		}
		if found == porcupine.Unknown {
			result.Undecided++
		} else {
			result.Wrong = append(result.Wrong, key)
		}
	}
	sort.Strings(result.Wrong)
	return result
}

func read(from io.Reader) (map[string][]operation, error) {
	histories := map[string][]operation{}
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("%w in %q", err, lines.Text())
		}
		switch op.Kind {
		case "get", "put", "create", "delete":
			histories[op.Key] = append(histories[op.Key], op)
		default:
			return nil, fmt.Errorf("unknown kind in %q", lines.Text())
		}
	}
	return histories, lines.Err()
}

func main() {
	strict := flag.Bool("strict", false, "require linearizable reads also during a write")
	window := flag.Duration("window", time.Second, "time until a write without a response is seen by all, once it is seen")
	limit := flag.Duration("limit", 20*time.Second, "time for one key")
	flag.Parse()
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	histories, err := read(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	result := judge(histories, *strict, *window, *limit)
	text, _ := json.Marshal(result)
	fmt.Println(string(text))
	if len(result.Wrong) > 0 || result.Undecided > 0 {
		os.Exit(1)
	}
}
