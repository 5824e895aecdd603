// Command bench measures the scheduler beside the stock one and beside coscheduling, one after the other against one real API server.
//
//	bench -nodes 1000 -gang 4 -round 0   one piece: its rows are added to results/scheduler/speed.csv
//	bench -nodes 1000 -verdicts          one piece, for verdicts.csv
//	bench -report                        the table of all pieces
//
// Nodes are objects and nobody runs the pods, so all that is measured is the scheduler, the API server and the load, which share the
// machine. `make bench` runs all pieces.
package main

import (
	"context"
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"coach.dev/scheduler-plugins/test/plane"
)

var (
	nodes    = flag.Int("nodes", 1000, "nodes of eight cores")
	size     = flag.Int("gang", 4, "members of a gang, of one core each")
	pods     = flag.Int("pods", 2000, "pods of one repetition")
	round    = flag.Int("round", 0, "number of the round; another contender begins each")
	verdicts = flag.Bool("verdicts", false, "measure gangs that cannot start, instead of the speed with those that can")
	only     = flag.String("only", "", "contenders, separated by commas; all if empty")
	out      = flag.String("out", "../results/scheduler", "folder of the tables")
	deploy   = flag.String("deploy", "../deploy/scheduler", "folder of the scheduler's own objects")
	podGroup = flag.String("podgroup-crd", "", "coscheduling's PodGroup CRD")
	report   = flag.Bool("report", false, "write the table of what was measured, and measure nothing")
	note     = flag.String("note", "", "a sentence on how it was measured, for the head of the table")
	profile  = flag.String("profile", "", "write a CPU profile of this scheduler under load here, and measure nothing for keeps")
)

func main() {
	flag.Parse()
	run := measure
	if *report {
		run = func() error { return writeReport(*out) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	folder, err := os.MkdirTemp("", "coach-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	p, stop, err := plane.Start(ctx, folder, *deploy)
	if err != nil {
		return err
	}
	defer stop()
	if err := p.Apply(ctx, *podGroup); err != nil {
		return err
	}
	c, err := newCluster(ctx, p)
	if err != nil {
		return err
	}
	if err := c.nodes(ctx, *nodes); err != nil {
		return err
	}
	var turns []contender
	for _, one := range contenders {
		if *only == "" || strings.Contains(","+*only+",", ","+one.name+",") {
			turns = append(turns, one)
		}
	}
	turn, table, columns, key := c.speed, "speed.csv", speedColumns, []int{*nodes, *size, *round}
	if *verdicts {
		turn, table, columns, key = c.verdicts, "verdicts.csv", verdictColumns, []int{*nodes, *round}
	}
	var rows [][]string
	for i := range turns {
		one := turns[(i+*round)%len(turns)]
		measured, err := turn(ctx, one)
		if err != nil {
			return fmt.Errorf("%s, round %d: %w", one.name, *round, err)
		}
		for _, row := range measured {
			for at := len(key) - 1; at >= 0; at-- {
				row = append([]string{strconv.Itoa(key[at])}, row...)
			}
			fmt.Println(strings.Join(row, ","))
			rows = append(rows, row)
		}
	}
	if *profile != "" {
		return nil
	}
	return add(filepath.Join(*out, table), columns, rows, len(key))
}

// add rows to a table; those of an earlier run of the same piece, which have the same key in front, go.
func add(path string, columns []string, rows [][]string, key int) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	kept := [][]string{columns}
	if file, err := os.Open(path); err == nil {
		before, err := csv.NewReader(file).ReadAll()
		file.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, row := range before[1:] {
			if !slices.Equal(row[:key], rows[0][:key]) {
				kept = append(kept, row)
			}
		}
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return csv.NewWriter(file).WriteAll(append(kept, rows...))
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 4, 64) }

func number(value float64, digits int) string { return strconv.FormatFloat(value, 'f', digits, 64) }
