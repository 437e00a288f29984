package timeline

import (
	"encoding/json"
	"time"
)

// MarshalJSON writes a hop's times in milliseconds, under names that say so.
func (h Hop) MarshalJSON() ([]byte, error) {
	type wire struct {
		Name   HopName `json:"name"`
		Owner  string  `json:"owner"`
		Node   string  `json:"node,omitempty"`
		Seen   bool    `json:"seen"`
		Began  float64 `json:"beganMilliseconds"`
		Worked float64 `json:"workedMilliseconds"`
		Ended  float64 `json:"endedMilliseconds"`
		Took   float64 `json:"tookMilliseconds"`
		Calls  int     `json:"calls,omitempty"`
	}
	return json.Marshal(wire{
		Name: h.Name, Owner: h.Owner, Node: h.Node, Seen: h.Seen, Calls: h.Calls,
		Began: f64(h.Began), Worked: f64(h.Worked), Ended: f64(h.Ended), Took: f64(h.Took()),
	})
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
