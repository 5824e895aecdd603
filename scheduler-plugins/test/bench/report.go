package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cell is what was measured of one contender in one piece: each column's values over the rounds.
type cell struct {
	key    []string // of the piece, then the contender
	values map[string][]float64
}

func (c *cell) median(column string) float64 {
	values := slices.Sorted(slices.Values(c.values[column]))
	if len(values) == 0 {
		return 0
	}
	return (values[len(values)/2] + values[(len(values)-1)/2]) / 2
}

func (c *cell) span(column string, digits int) string {
	values := c.values[column]
	if len(values) == 0 {
		return "-"
	}
	if len(values) == 1 {
		return number(values[0], digits)
	}
	return fmt.Sprintf("%s (%s-%s)", number(c.median(column), digits), number(slices.Min(values), digits), number(slices.Max(values), digits))
}

// read a table into cells by the key columns, in the order in which they were written.
func read(path string, key ...string) ([]*cell, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w; run: make bench", err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var cells []*cell
	for _, row := range rows[1:] {
		var mine []string
		for _, name := range key {
			mine = append(mine, row[slices.Index(rows[0], name)])
		}
		at := slices.IndexFunc(cells, func(c *cell) bool { return slices.Equal(c.key, mine) })
		if at < 0 {
			at = len(cells)
			cells = append(cells, &cell{key: mine, values: map[string][]float64{}})
		}
		for i, text := range row {
			if value, err := strconv.ParseFloat(text, 64); err == nil {
				cells[at].values[rows[0][i]] = append(cells[at].values[rows[0][i]], value)
			}
		}
	}
	return cells, nil
}

// rival finds the same piece of another contender.
func rival(cells []*cell, of *cell, contender string) *cell {
	for _, c := range cells {
		if slices.Equal(c.key[:len(c.key)-1], of.key[:len(of.key)-1]) && c.key[len(c.key)-1] == contender {
			return c
		}
	}
	return nil
}

// writeReport puts what the tables say into words: medians over the rounds, with the least and the most.
func writeReport(folder string) error {
	speeds, err := read(filepath.Join(folder, "speed.csv"), "nodes", "gang", "way", "contender")
	if err != nil {
		return err
	}
	size := func(c *cell, at int) int { number, _ := strconv.Atoi(c.key[at]); return number }
	slices.SortStableFunc(speeds, func(a, b *cell) int { return cmp.Or(size(a, 0)-size(b, 0), size(a, 1)-size(b, 1)) })
	verdicts, err := read(filepath.Join(folder, "verdicts.csv"), "nodes", "kind", "contender")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var b strings.Builder
	b.WriteString("# The scheduler beside others\n\nWritten by `make bench` in scheduler-plugins; `test/bench` says how each number is taken. ")
	b.WriteString("Medians over the rounds, with the least and the most where there was more than one. Contenders take turns on one API server, with the same limits (")
	fmt.Fprintf(&b, "QPS %d, burst %d) and feature gates (%s) for all;\nscheduler, API server, store and load share the machine's cores.\n\n", qps, burst, gates)
	if *note != "" {
		b.WriteString(*note + "\n\n")
	}
	for _, c := range contenders {
		fmt.Fprintf(&b, "- %s: %s\n", c.name, c.describe)
	}
	b.WriteString("\n`live`: gangs are created while they are placed, the clock runs from the first creation to the last binding. `backlog`: all gangs are there when the\n")
	b.WriteString("scheduler starts, the clock runs from the first binding to the last. A gang's time runs from the creation of its last member to its last binding.\n")
	b.WriteString("The stock scheduler places pod by pod: for it a gang is only a name. *held*: core-seconds a pod for which room was taken until the pod might go (for coach\n")
	b.WriteString("from the plan on, for the others from Reserve on); *binding*: from then on until it was bound (for coach until it has heard so).\n\n## Speed\n\n")
	b.WriteString("| nodes | gang | way | scheduler | pods/s | x stock | x coscheduling | gang p50 s | gang p99 s | writes a pod | held | binding | memory MiB | CPU s |\n")
	b.WriteString("|-|-|-|-|-|-|-|-|-|-|-|-|-|-|\n")
	for _, c := range speeds {
		times := func(other string) string {
			if o := rival(speeds, c, other); o != nil && o != c {
				return number(c.median("pods_per_second")/o.median("pods_per_second"), 2)
			}
			return ""
		}
		p50, p99 := c.span("gang_p50_seconds", 3), c.span("gang_p99_seconds", 3)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", c.key[0], c.key[1], c.key[2], c.key[3], c.span("pods_per_second", 0),
			times("stock"), times("coscheduling"), p50, p99, number(c.median("writes_per_pod"), 2), number(c.median("held_core_seconds_per_pod"), 3),
			number(c.median("binding_core_seconds_per_pod"), 3),
			number(c.median("memory_mib"), 0), number(c.median("cpu_seconds"), 1))
	}
	b.WriteString("\n## Gangs that cannot start\n\n*too large*: 100 members, the last of which no node can hold. *fragmented*: 60 members on 50 nodes that hold one each; the sum of the free room is enough.\n")
	fmt.Fprintf(&b, "The verdict is the first word after the last member was created on why a pod is not scheduled; for coach, the one on the whole gang. The other columns are of the %.0f s after the last member was created.\n\n", watched.Seconds())
	b.WriteString("| nodes | gang | scheduler | verdict s | pods bound | held core-seconds | API writes |\n|-|-|-|-|-|-|-|\n")
	for _, c := range verdicts {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", c.key[0], c.key[1], c.key[2], c.span("verdict_seconds", 3), number(c.median("bound_after"), 0),
			c.span("held_core_seconds", 1), number(c.median("writes"), 0))
	}
	b.WriteString("\n## Goals\n\n| goal | reached | missed |\n|-|-|-|\n")
	for _, g := range goals(speeds, verdicts) {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", g.text, list(g.reached), list(g.missed))
	}
	if played, err := read(filepath.Join(folder, "histories.csv"), "broken"); err == nil && len(played) == 1 {
		total := func(column string) string {
			sum := 0.0
			for _, value := range played[0].values[column] {
				sum += value
			}
			return number(sum, 0)
		}
		fmt.Fprintf(&b, "\n## Random histories\n\n%s histories, %s gangs: %s waited, %s passed a head, %s verdicts denied in vain by trying every node for every member,\n", number(slices.Max(played[0].values["end"]), 0), total("gangs"), total("waited"), total("passed"), total("verdicts"))
		fmt.Fprintf(&b, "%s promises broken (`make histories`, by seed in histories.csv).\n", total("broken"))
	}
	fmt.Print(b.String())
	return os.WriteFile(filepath.Join(folder, "README.md"), []byte(b.String()), 0o644)
}

type goal struct {
	text            string
	reached, missed []string
}

func (g *goal) note(ok bool, where string) {
	if ok {
		g.reached = append(g.reached, where)
	} else {
		g.missed = append(g.missed, where)
	}
}

func goals(speeds, verdicts []*cell) []goal {
	all := []goal{{text: "at least 0.9 x stock, pods/s"}, {text: "ahead of coscheduling, pods/s"}, {text: "a verdict in less than 1 s"},
		{text: "no room held for a gang that cannot start"}, {text: "no part of such a gang is bound"}}
	for _, c := range speeds {
		where := fmt.Sprintf("%s nodes, gangs of %s, %s", c.key[0], c.key[1], c.key[2])
		stock, other := rival(speeds, c, "stock"), rival(speeds, c, "coscheduling")
		if c.key[3] != "coach" || stock == nil || other == nil {
			continue
		}
		all[0].note(c.median("pods_per_second") >= 0.9*stock.median("pods_per_second"), where)
		all[1].note(c.median("pods_per_second") > other.median("pods_per_second"), where)
	}
	for _, c := range verdicts {
		if c.key[2] == "coach" && len(c.values["verdict_seconds"]) > 0 {
			where := c.key[0] + " nodes, " + c.key[1]
			all[2].note(slices.Max(c.values["verdict_seconds"]) < 1, where)
			all[3].note(slices.Max(c.values["held_core_seconds"]) == 0, where)
			all[4].note(slices.Max(c.values["bound_after"]) == 0, where)
		}
	}
	return all
}

func list(cases []string) string {
	if len(cases) == 0 {
		return "-"
	}
	return strings.Join(cases, "; ")
}
