package main

import (
	"testing"
	"time"
)

// Builds an operation from call to end.
func op(kind, value, outcome string, call, end int64) operation {
	return operation{Key: "k", Kind: kind, Value: value, Outcome: outcome, Call: call, Return: end}
}

func TestVerdicts(t *testing.T) {
	put := func(value string, call, end int64) operation { return op("put", value, done, call, end) }
	get := func(value string, call, end int64) operation { return op("get", value, done, call, end) }
	lost := func(value string, call int64) operation { return op("put", value, unknown, call, call+1) }
	const window = time.Duration(10)
	const linearizable, weaker, wrong = "linearizable", "weaker", "wrong"
	for _, tried := range []struct {
		name    string
		history []operation
		want    string
	}{
		{"read after write", []operation{put("a", 0, 1), get("a", 2, 3)}, linearizable},
		{"stale read", []operation{put("a", 0, 1), put("b", 2, 3), get("a", 4, 5)}, wrong},
		{"new, then old, during the write", []operation{put("a", 0, 1), put("b", 2, 9), get("b", 3, 4), get("a", 5, 6)}, weaker},
		{"new, then old, after the write", []operation{put("a", 0, 1), put("b", 2, 5), get("b", 6, 7), get("a", 8, 9)}, wrong},
		{"lost write is seen", []operation{put("a", 0, 1), lost("b", 2), get("a", 4, 5), get("b", 6, 7)}, linearizable},
		{"lost write is seen, then not", []operation{put("a", 0, 1), lost("b", 2), get("b", 6, 7), get("a", 8, 9)}, weaker},
		{"lost write is seen, not after its window", []operation{put("a", 0, 1), lost("b", 2), get("b", 6, 7), get("a", 19, 20)}, wrong},
		{"lost write is not seen", []operation{put("a", 0, 1), lost("b", 2), get("a", 4, 5)}, linearizable},
		{"create of what is there", []operation{put("a", 0, 1), op("create", "b", exists, 2, 3), get("a", 4, 5)}, linearizable},
		{"refused create of nothing", []operation{op("create", "b", exists, 2, 3)}, wrong},
		{"refused create that was stored", []operation{op("create", "b", exists, 2, 3), get("b", 4, 5)}, wrong},
		{"two creates of one key", []operation{op("create", "a", done, 0, 5), op("create", "b", done, 1, 6)}, wrong},
		{"deletion", []operation{put("a", 0, 1), op("delete", "", done, 2, 3), get("", 4, 5)}, linearizable},
		{"deletion undone", []operation{put("a", 0, 1), op("delete", "", done, 2, 3), get("a", 4, 5)}, wrong},
		{"value that nobody wrote", []operation{put("a", 0, 1), get("z", 2, 3)}, wrong},
	} {
		result := judge(map[string][]operation{"k": tried.history}, false, window, time.Second)
		got := map[string]int{linearizable: result.Linearizable, weaker: result.Weaker, wrong: len(result.Wrong)}
		if got[tried.want] != 1 {
			t.Errorf("%s: %+v, want %s", tried.name, result, tried.want)
		}
		isStrict := len(judge(map[string][]operation{"k": tried.history}, true, window, time.Second).Wrong) == 0
		if isStrict != (tried.want == linearizable) {
			t.Errorf("%s: strict is %v", tried.name, isStrict)
		}
	}
}
