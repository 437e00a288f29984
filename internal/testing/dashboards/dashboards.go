// Package dashboards reads the Grafana dashboards of the repository for tests: their panels, and the queries as Prometheus gets them.
package dashboards

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Board is a dashboard, as far as tests look at it.
type Board struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []Panel `json:"panels"`
	Templating struct {
		List []Variable `json:"list"`
	} `json:"templating"`
}

// Variable is one that the user of a dashboard chooses.
type Variable struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Query string `json:"query"`
	// AllValue stands for all values of the variable; empty if only one can be chosen.
	AllValue string `json:"allValue"`
}

// Panel is a row, or a picture with its queries.
type Panel struct {
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	GridPos     Position `json:"gridPos"`
	Targets     []Target `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit   string `json:"unit"`
			Custom struct {
				Scale struct {
					Type string `json:"type"`
				} `json:"scaleDistribution"`
			} `json:"custom"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// Position on the grid of 24 columns.
type Position struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

// Target is a query.
type Target struct {
	Expr   string `json:"expr"`
	Legend string `json:"legendFormat"`
}

// Read returns the dashboards of a folder.
func Read(folder string) ([]Board, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("look for dashboards in %s: %w", folder, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no dashboards in %s", folder)
	}
	boards := make([]Board, len(files))
	for i, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read dashboard: %w", err)
		}
		if err := json.Unmarshal(raw, &boards[i]); err != nil {
			return nil, fmt.Errorf("read dashboard %s: %w", file, err)
		}
	}
	return boards, nil
}

var labelValues = regexp.MustCompile(`^label_values\((.+), *(\w+)\)$`)

// Values are the series and the label that a variable's values come from.
func (v Variable) Values() (series, label string, err error) {
	match := labelValues.FindStringSubmatch(v.Query)
	if match == nil {
		return "", "", fmt.Errorf("variable %s: %q is not label_values(SERIES, LABEL)", v.Name, v.Query)
	}
	return match[1], match[2], nil
}

// reference is one to a variable. $1 is a group of label_replace.
var reference = regexp.MustCompile(`\$\{?([a-zA-Z_]\w*)\}?`)

// Fill puts values in the place of variables. An unknown variable is an error.
func Fill(expr string, values map[string]string) (filled string, err error) {
	var unknown []string
	filled = reference.ReplaceAllStringFunc(expr, func(text string) string {
		name := strings.Trim(text, "${}")
		value, ok := values[name]
		if !ok {
			unknown = append(unknown, name)
		}
		return value
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("%s: no variable %s", expr, strings.Join(unknown, ", "))
	}
	return filled, nil
}
