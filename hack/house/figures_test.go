package house

// figure is a number in README.md with the place that it is from.
type figure struct {
	// readme is a text of README.md, outside of code; the figure is the first number with a unit in it.
	readme string
	// file is the source, from the root of the repository, and source a regular expression with one group: the number there. It must
	// match once. The number in README.md is that number, rounded to the digits that README.md shows.
	file, source string
}

// figures are the sources of the numbers in README.md, for example
//
//	{"31 s until the pod writes elsewhere", "docs/recovery/how-long.md", `(?m)^\| default .*\| ([\d.]+) s \|`},
var figures = []figure{
	{"elsewhere: 30.0 s (n=8)", performance, `(?m)^\| power cut \| kubelet \| recovery, profile default, beside upstream's controller \| 8 \| 0 \| ([\d.]+) s`},
	{"not within 8 min without", performance, `not within (\d+) min, left alone \(n=1\)`},
	{"70.9 s with a script", performance, `(?m)^\| power cut \| kubelet \| without recovery, with the script \| 4 \| 0 \| ([\d.]+) s`},
	{"node: 4.5 s (n=4)", performance, drained("as shipped", 2)},
	{"csi-attacher 80.6 s", performance, drained("as shipped", 1)},
	{"limits 4.6 s", performance, drained("csi-attacher tuned", 1)},
	{"volumes: 0.28 %", performance, `(?m)^\| controller, belay \| [\d.]+ \| ([\d.]+) \| 0.262 \|$`},
	{"upstream 43.3 %", performance, `(?m)^\| controller, upstream \| [\d.]+ \| ([\d.]+) \| 99.9 \|$`},
	{"100,000: 0.26 %", performance, `idle controller, % of a core \| [\d.]+ \| ([\d.]+) `},
	{"upstream 99.91 %", performance, `idle controller, % of a core \| ([\d.]+) `},
	{"after 9.4 s", performance, `(?m)^\| pod deleted -> running elsewhere, status every 10 s \| 6 \| [^|]* \| ([\d.]+) s`},
	{"after 9.9 s", performance, `(?m)^\| pod deleted -> running elsewhere, status every 10 s \| 6 \| ([\d.]+) s`},
	{"VolumeAttachment comes after 44.0 s", performance, `start to first write, s \| [\d.]+ \| ([\d.]+)`},
	{"upstream's after 30.1 s", performance, `start to first write, s \| ([\d.]+)`},
	{"not been renewed for 25 s", "docs/recovery/nodes-and-people.md", `(?m)^\| .default. \| (\d+) s`},
}

const performance = "docs/performance.md"

// drained is the time of upstream's or belay's column until the last of 100 volumes has left its node, with a driver of 2 s.
func drained(flags string, column int) string {
	row := `(?m)^\| drain of 100, driver of 2 s, ` + flags + `: last attached elsewhere, s \| [^|]+`
	for range column - 1 {
		row += `\| [^|]+`
	}
	return row + `\| ([\d.]+)`
}
