package nodeagent

import (
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

var jsonCodec = scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion)

// lines is a log that a test looks into.
type lines struct {
	mu   sync.Mutex
	said []string
}

func (l *lines) logger() logr.Logger {
	return funcr.New(func(prefix, line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.said = append(l.said, prefix+line)
	}, funcr.Options{Verbosity: 10})
}

// with are the lines that hold a text.
func (l *lines) with(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, line := range l.said {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
