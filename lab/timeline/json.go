package timeline

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// stepJSON is a step with its times in milliseconds, under names that say so.
type stepJSON struct {
	Name   StepName `json:"name"`
	Owner  string   `json:"owner"`
	Node   string   `json:"node,omitempty"`
	Seen   bool     `json:"seen"`
	Began  float64  `json:"beganMilliseconds"`
	Worked float64  `json:"workedMilliseconds"`
	Ended  float64  `json:"endedMilliseconds"`
	Took   float64  `json:"tookMilliseconds"`
	Calls  int      `json:"calls,omitempty"`
}

// MarshalJSON writes a step's times in milliseconds.
func (h Step) MarshalJSON() ([]byte, error) {
	return json.Marshal(stepJSON{
		Name: h.Name, Owner: h.Owner, Node: h.Node, Seen: h.Seen, Calls: h.Calls,
		Began: f64(h.Began), Worked: f64(h.Worked), Ended: f64(h.Ended), Took: f64(h.Took()),
	})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (h *Step) UnmarshalJSON(data []byte) error {
	var j stepJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return fmt.Errorf("read a step: %w", err)
	}
	*h = Step{
		Name: j.Name, Owner: j.Owner, Node: j.Node, Seen: j.Seen, Calls: j.Calls,
		Began: duration(j.Began), Worked: duration(j.Worked), Ended: duration(j.Ended),
	}
	return nil
}

// MarshalJSON adds the derived figures, which are not stored.
func (m *Move) MarshalJSON() ([]byte, error) {
	type plain Move // without this method
	return json.Marshal(struct {
		*plain
		Total   float64  `json:"totalMilliseconds"`
		Figures []Figure `json:"figures"`
	}{plain: (*plain)(m), Total: f64(m.Total()), Figures: m.Figures()})
}

// MarshalJSON writes the figure in milliseconds.
func (f Figure) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name string  `json:"name"`
		Took float64 `json:"milliseconds"`
	}{f.Name, f64(f.Took)})
}

func f64(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func duration(milliseconds float64) time.Duration {
	return time.Duration(math.Round(milliseconds * float64(time.Millisecond)))
}
