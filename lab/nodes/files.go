package nodes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// writeJSON replaces a file whole: a reader, and a process that starts after a
// crash, sees the old content or the new.
func writeJSON(file string, value any) error {
	raw, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", file, err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	defer func() { _ = temporary.Close() }()
	if _, err := temporary.Write(append(raw, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := temporary.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", file, err)
	}
	if err := os.Rename(temporary.Name(), file); err != nil {
		return fmt.Errorf("replace %s: %w", file, err)
	}
	return nil
}

// readJSON reads what writeJSON wrote.
func readJSON(file string, value any) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	if err := json.Unmarshal(raw, value); err != nil {
		return fmt.Errorf("read record %s: %w", file, err)
	}
	return nil
}

func answerJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
