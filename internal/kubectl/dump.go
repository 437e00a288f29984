package kubectl

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"belay.dev/belay/internal/diagnosis"
)

// Text prints an explanation as a command does to a file: without colors, and not wrapped.
func Text(out io.Writer, e diagnosis.Explanation) error {
	return writeText(out, &page{now: e.Time, wide: true}, e)
}

func writeText(to io.Writer, out *page, e diagnosis.Explanation) error {
	if len(e.Findings) == 0 {
		out.heading(e.Verdict, ": "+e.Summary)
	}
	for i, same := range sameCause(e.Findings) {
		if i > 0 {
			out.text.WriteString("\n")
		}
		out.finding(same[0], same[1:])
	}
	out.unread(e.Unread)
	_, err := fmt.Fprint(to, out.text.String())
	return err
}

// dump writes what an answer is made from into a file, so that it can be made again without the cluster.
func dump(file string, s *diagnosis.Snapshot) error {
	if file == "" {
		return nil
	}
	document, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode what was read: %w", err)
	}
	if err := os.WriteFile(file, document, 0o600); err != nil {
		return fmt.Errorf("write what was read: %w", err)
	}
	return nil
}
