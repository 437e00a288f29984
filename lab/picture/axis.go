package picture

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Mark is a place on an axis, and what is written there.
type Mark struct {
	Value float64
	Label string
}

// step is the least of 1, 2 or 5 times a power of ten that divides length into at most so many parts.
func step(length float64, atMost int) float64 {
	least := length / float64(atMost)
	power := math.Pow10(int(math.Floor(math.Log10(least))))
	for _, factor := range []float64{1, 2, 5} {
		if factor*power >= least*(1-1e-9) {
			return factor * power
		}
	}
	return 10 * power
}

// marks are round numbers from 0 up to greatest, in at most so many steps. With beyond, the last is the first that is not below greatest.
func marks(greatest float64, atMost int, beyond bool) []Mark {
	if greatest <= 0 || math.IsInf(greatest, 0) || math.IsNaN(greatest) {
		return []Mark{{0, "0"}}
	}
	by := step(greatest, atMost)
	last := math.Floor(greatest/by + 1e-9)
	if beyond {
		last = math.Ceil(greatest/by - 1e-9)
	}
	var all []Mark
	for i := range int(last) + 1 {
		value := float64(i) * by
		all = append(all, Mark{value, Number(value)})
	}
	return all
}

// Times are the marks of an axis of time, with values in seconds. They are in seconds from 10 s on, and in milliseconds below.
func Times(total time.Duration, atMost int) []Mark {
	if total >= 10*time.Second {
		all := marks(total.Seconds(), atMost, false)
		for i := range all {
			all[i].Label += " s"
		}
		return all
	}
	all := marks(float64(total)/float64(time.Millisecond), atMost, false)
	for i := range all {
		all[i].Value /= 1000
		all[i].Label += " ms"
	}
	return all
}

// Duration is a time with one decimal, in seconds from 10 s on, and in milliseconds below.
func Duration(d time.Duration) string {
	if d >= 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// Number has three significant digits, or fewer where those are exact. Its whole part has all of its digits, and the thousands set apart.
func Number(v float64) string {
	decimals := 0
	for scale := math.Abs(v); decimals < 6 && scale < 100 && math.Abs(v*math.Pow10(decimals)-math.Round(v*math.Pow10(decimals))) > 1e-6; scale *= 10 {
		decimals++
	}
	whole, rest, fraction := strings.Cut(strconv.FormatFloat(v, 'f', decimals, 64), ".")
	for at := len(whole) - 3; at > 0 && whole[at-1] != '-'; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	if fraction {
		return whole + "." + rest
	}
	return whole
}
