package main

import (
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// Units of Grafana.
const (
	seconds = units.Seconds
	bytes   = units.BytesIEC
	perSec  = units.OpsPerSecond
	number  = units.Short
	ratio   = units.PercentUnit
)

// Sizes on Grafana's grid of 24 columns.
const (
	statWidth, statHeight   = 4, 4
	graphWidth, graphHeight = 12, 8
)

// source is the variable with the data source.
var source = common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}

// query is an expression and what its series are called.
type query struct{ expr, legend string }

// board is a dashboard that is being made.
type board struct{ *dashboard.DashboardBuilder }

func newBoard(uid, title, description string) board {
	b := board{dashboard.NewDashboardBuilder(title).Uid(uid).Description(description).Tags([]string{"belay"}).
		Refresh("30s").Time("now-1h", "now").Timezone("browser").Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus")).
		Link(dashboard.NewDashboardLinkBuilder("belay").Type(dashboard.DashboardLinkTypeDashboards).Tags([]string{"belay"}).
			AsDropdown(true).KeepTime(true).IncludeVars(false))}
	return b
}

// choice adds a variable with the values of a label; several can be chosen, or all.
func (b board) choice(name, label, values string) {
	b.WithVariable(b.variable(name, label, values).Multi(true).IncludeAll(true).AllValue(".*"))
}

// single adds a variable of which one value is chosen.
func (b board) single(name, label, values string) { b.WithVariable(b.variable(name, label, values)) }

func (b board) variable(name, label, values string) *dashboard.QueryVariableBuilder {
	return dashboard.NewQueryVariableBuilder(name).Label(label).Datasource(source).
		Query(dashboard.StringOrMap{String: &values}).Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
		Sort(dashboard.VariableSortAlphabeticalAsc)
}

func (b board) row(title string) { b.WithRow(dashboard.NewRowBuilder(title)) }

// graph adds a panel with lines.
func (b board) graph(title, description, unit string, queries ...query) {
	b.WithPanel(lines(title, description, unit, queries))
}

// stack adds a panel with areas on top of each other, whose sum has a meaning.
func (b board) stack(title, description, unit string, queries ...query) {
	b.WithPanel(lines(title, description, unit, queries).FillOpacity(30).
		Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal)))
}

func lines(title, description, unit string, queries []query) *timeseries.PanelBuilder {
	return timeseries.NewPanelBuilder().Title(title).Description(description).Datasource(source).Unit(unit).AxisSoftMin(0).
		Span(graphWidth).Height(graphHeight).LineWidth(1).FillOpacity(5).ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeTable).
			Placement(common.LegendPlacementBottom).Calcs([]string{"lastNotNull", "max"})).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Targets(targets(queries))
}

// value is one figure. It is red from `bad` upward, or, if good is set, unless it is at least that.
type value struct {
	title, description, unit, expr string
	bad, good                      float64
}

func (b board) value(v value) {
	steps := []dashboard.Threshold{{Color: "green"}}
	switch {
	case v.bad > 0:
		steps = append(steps, dashboard.Threshold{Value: &v.bad, Color: "red"})
	case v.good > 0:
		steps = []dashboard.Threshold{{Color: "red"}, {Value: &v.good, Color: "green"}}
	}
	b.WithPanel(stat.NewPanelBuilder().Title(v.title).Description(v.description).Datasource(source).Unit(v.unit).
		Span(statWidth).Height(statHeight).GraphMode(common.BigValueGraphModeArea).ColorMode(common.BigValueColorModeValue).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)).
		Targets(targets([]query{{v.expr, ""}})))
}

func targets(queries []query) (all []cog.Builder[variants.Dataquery]) {
	for i, q := range queries {
		all = append(all, prometheus.NewDataqueryBuilder().RefId(string(rune('A'+i))).Datasource(source).
			Expr(q.expr).LegendFormat(q.legend).Range())
	}
	return all
}

// durations adds a panel with the 95th percentile of a histogram by a label. The axis is logarithmic: milliseconds and minutes meet.
func (b board) durations(title, description, histogram, selector, label string) {
	expr := fmt.Sprintf("histogram_quantile(0.95, sum by (le, %s) (rate(%s_bucket%s[$__rate_interval])))", label, histogram, selector)
	legend := "{{" + label + "}}"
	if label == methodName {
		expr, legend = shortMethod(expr), "{{method}}"
	}
	b.WithPanel(lines(title, "95th percentile. "+description, seconds, []query{{expr, legend}}).
		ScaleDistribution(common.NewScaleDistributionConfigBuilder().Type(common.ScaleDistributionLog).Log(10)))
}

// methodName is the label with the full name of a gRPC method.
const methodName = "method_name"

// shortMethod adds a label method to an expression: NodeStageVolume of /csi.v1.Node/NodeStageVolume.
func shortMethod(expr string) string {
	return fmt.Sprintf(`label_replace(%s, "method", "$1", "method_name", ".*/(.*)")`, expr)
}

// process adds the memory and the CPU of the processes that export a metric.
func (b board) process(metric string) {
	b.row("Processes")
	b.graph("Memory", "Resident memory of the ten largest processes.", bytes,
		query{"topk(10, process_resident_memory_bytes and on (job, instance) " + metric + ")", "{{instance}}"})
	b.graph("CPU", "Cores that the ten busiest processes use.", number,
		query{"topk(10, rate(process_cpu_seconds_total[$__rate_interval]) and on (job, instance) " + metric + ")", "{{instance}}"})
}
