// Peers of Bywash written in Go.
//
// bywash-peers WHAT reads one case a line from standard input and prints one line for each: its figures, separated by
// spaces, or "error: " and a reason. The caller chooses the order of cases, so that sides alternate.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A peer runs one case, named by its words, and returns its figures.
type peer func(words []string) ([]float64, error)

var peers = map[string]peer{
	"drain":    drain,
	"registry": registry,
	"series":   insertRows,
	"write-at": writeAt,
}

func main() {
	if len(os.Args) != 2 || peers[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: bywash-peers WHAT, where WHAT is a key of `peers` in main.go")
		os.Exit(2)
	}
	run := peers[os.Args[1]]
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		figures, err := run(strings.Fields(lines.Text()))
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		words := make([]string, len(figures))
		for i, figure := range figures {
			words[i] = strconv.FormatFloat(figure, 'g', -1, 64)
		}
		fmt.Println(strings.Join(words, " "))
	}
}
