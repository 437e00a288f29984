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
var figures = []figure{}
