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
	{"after 25.9 s (n=8)", performance, `(?m)^\| power cut \| kubelet \| recovery, profile default, beside upstream's controller \| 8 \| 0 \| ([\d.]+) s`},
	{"or 66.5 s if a script", performance, `(?m)^\| power cut \| kubelet \| without recovery, with the script \| 4 \| 0 \| ([\d.]+) s`},
	{"seconds: 4.5 s", performance, drained("as shipped", 2)},
	{"not 80.6 s", performance, drained("as shipped", 1)},
	{"4.6 s with its", performance, drained("csi-attacher tuned", 1)},
	{"idle 0.28 %", performance, `(?m)^\| controller, belay \| [\d.]+ \| ([\d.]+) \| 0.262 \|$`},
	{"not 43.3 %", performance, `(?m)^\| controller, upstream \| [\d.]+ \| ([\d.]+) \| 99.9 \|$`},
	{"0.26 %, not 99.91 %", performance, `idle controller, % of a core \| [\d.]+ \| ([\d.]+) `},
	{"not 99.91 %", performance, `idle controller, % of a core \| ([\d.]+) `},
	{"after 9.4 s", performance, `(?m)^\| pod deleted -> running elsewhere, status every 10 s \| 6 \| [^|]* \| ([\d.]+) s`},
	{"after 9.9 s", performance, `(?m)^\| pod deleted -> running elsewhere, status every 10 s \| 6 \| ([\d.]+) s`},
	{"VolumeAttachment: 44.0 s", performance, `start to first write, s \| [\d.]+ \| ([\d.]+)`},
	{"upstream's 30.1 s", performance, `start to first write, s \| ([\d.]+)`},
	{"not renewed for 25 s", "docs/recovery/nodes-and-people.md", `(?m)^\| .default. \| (\d+) s`},
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
