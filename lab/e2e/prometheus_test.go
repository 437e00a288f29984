package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/lab/labtest"
)

// prometheusServer is a Prometheus that scrapes a lab every second.
type prometheusServer struct{ address string }

// startPrometheus starts one that ends with the test.
func startPrometheus(t *testing.T, program, lab string, metrics map[string]string) *prometheusServer {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	raw, err := yaml.Marshal(scrapeConfig(t, lab, metrics))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &prometheusServer{address: process.FreeAddress()}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(context.Background(), program,
		"--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("prometheus:\n%s", text)
		}
	})
	labtest.Until(t, time.Minute, "all targets to be scraped", func() error { return p.scrapes(t.Context()) })
	return p
}

// scrapeConfig is the configuration. The nodes ask for a certificate, as kubelets do.
func scrapeConfig(t *testing.T, lab string, metrics map[string]string) map[string]any {
	t.Helper()
	pki := filepath.Join(lab, "pki")
	var jobs []any
	for job, targets := range scrapeJobs(metrics) {
		var static []any
		scheme := ""
		for instance, address := range targets {
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			scheme = u.Scheme
			static = append(static, map[string]any{"targets": []string{u.Host}, "labels": map[string]string{"instance": instance}})
		}
		jobs = append(jobs, map[string]any{
			"job_name": job, "scheme": scheme, "static_configs": static,
			"tls_config": map[string]any{
				"ca_file": filepath.Join(pki, "ca.crt"), "cert_file": filepath.Join(pki, "apiserver-kubelet-client.crt"),
				"key_file": filepath.Join(pki, "apiserver-kubelet-client.key"),
			},
		})
	}
	return map[string]any{"global": map[string]any{"scrape_interval": "1s"}, "scrape_configs": jobs}
}

// scrapes fails until every target was scraped.
func (p *prometheusServer) scrapes(ctx context.Context) error {
	var answer struct {
		Data struct {
			ActiveTargets []struct {
				ScrapeURL string `json:"scrapeUrl"`
				Health    string `json:"health"`
				LastError string `json:"lastError"`
			} `json:"activeTargets"`
		} `json:"data"`
	}
	if err := p.get(ctx, "targets", nil, &answer); err != nil {
		return err
	}
	if len(answer.Data.ActiveTargets) == 0 {
		return fmt.Errorf("no targets")
	}
	for _, target := range answer.Data.ActiveTargets {
		if target.Health != "up" {
			return fmt.Errorf("%s is %s: %s", target.ScrapeURL, target.Health, target.LastError)
		}
	}
	return nil
}

// labels are the values of a label, sorted.
func (p *prometheusServer) labels(ctx context.Context, series, label string) ([]string, error) {
	var answer struct {
		Data []string `json:"data"`
	}
	err := p.get(ctx, "label/"+label+"/values", url.Values{"match[]": {series}}, &answer)
	slices.Sort(answer.Data)
	return answer.Data, err
}

var legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)

// query returns the lines of an expression since a time. A line without a number, such as a quantile of nothing, is left out.
func (p *prometheusServer) query(ctx context.Context, expr, legend string, since time.Time) (lines []line, err error) {
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string `json:"metric"`
				Values [][2]any          `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := p.get(ctx, "query_range", url.Values{
		"query": {expr}, "step": {"2"}, "start": {stamp(since)}, "end": {stamp(time.Now())},
	}, &answer); err != nil {
		return nil, err
	}
	for _, series := range answer.Data.Result {
		l := line{Name: legendLabel.ReplaceAllStringFunc(legend, func(text string) string { return series.Metric[strings.Trim(text, "{}")] })}
		for _, value := range series.Values {
			at, isNumber := value[0].(float64)
			text, isText := value[1].(string)
			y, err := strconv.ParseFloat(text, 64)
			if !isNumber || !isText || err != nil {
				return nil, fmt.Errorf("%s: value %v", expr, value)
			}
			if !math.IsNaN(y) && !math.IsInf(y, 0) {
				l.Points = append(l.Points, [2]float64{at, y})
			}
		}
		if len(l.Points) > 0 {
			lines = append(lines, l)
		}
	}
	return lines, nil
}

// sees waits until an expression has a value.
func (p *prometheusServer) sees(t *testing.T, expr string) {
	t.Helper()
	labtest.Until(t, labtest.StuckLimit, expr, func() error {
		lines, err := p.query(t.Context(), expr, "", time.Now().Add(-10*time.Second))
		if err == nil && len(lines) == 0 {
			err = fmt.Errorf("no series")
		}
		return err
	})
}

func stamp(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }

func (p *prometheusServer) get(ctx context.Context, path string, values url.Values, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/"+path+"?"+values.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("prometheus answers %s to %s: %s", response.Status, values.Get("query"), raw)
	}
	return json.Unmarshal(raw, into)
}
